#include "megalith/report/echo_counts_file.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"
#include "megalith/ops/group_rows.h"

namespace megalith::apps {
namespace {

constexpr std::uint64_t kMaxPairs = std::numeric_limits<std::int32_t>::max();

/// Numbers of an entry's input, and the most that each can be.
constexpr std::array<std::pair<std::string_view, std::uint64_t>, 4> kSettings = {
    {{"ranks", ops::kMaxEchoRanks},
     {"experts", ops::kMaxEchoExperts},
     {"slots_per_rank", ops::kMaxEchoSlots},
     {"min_pairs", kMaxPairs}}};
constexpr std::string_view kInputKeys[] = {"ranks", "experts", "slots_per_rank", "min_pairs", "balance", "count"};

/// Where a value begins whose last byte is text[at]; of a number the byte after it may have been read, too.
std::size_t begin_of_value(std::string_view text, std::size_t at, std::string_view shown) {
  if (shown.starts_with('"')) {
    const auto is_escaped = [&](std::size_t quote) {
      std::size_t first = quote;
      while (first > 0 && text[first - 1] == '\\') --first;
      return (quote - first) % 2 == 1;
    };
    do --at;
    while (at > 0 && (text[at] != '"' || is_escaped(at)));
    return at;
  }
  const bool is_number = !shown.empty() && shown.find_first_not_of("-+.eE0123456789") == std::string_view::npos;
  const bool is_word = shown == "true" || shown == "false" || shown == "null";
  if (!is_number && !is_word) return at;
  const auto is_in = [&](char c) {
    return std::string_view(is_number ? "-+.eE0123456789" : "aeflnrstu").find(c) != std::string_view::npos;
  };
  if (!is_in(text[at]) && at > 0) --at;
  while (at > 0 && is_in(text[at - 1])) --at;
  return at;
}

/// Keeps what matters of the file, and the place of each.
class CountsVisitor final : public io::JsonVisitor {
 public:
  CountsVisitor(std::string_view text, std::string_view file, const EchoGrid& grid)
      : text_(text), file_(file), grid_(grid) {}

  void start_object() override {
    require_no_count("an object");
    refuse_op("an object");
    refuse_setting("an object");
    if (open_.empty()) matrix_ = "$.input.count";
    open_.push_back({value_path(), Container::object});
  }
  void end_object() override { open_.pop_back(); }
  void start_array() override {
    const std::string path = value_path();
    if (path == matrix_ + "[][]") require_no_count("an array");
    refuse_op("an array");
    refuse_setting("an array");
    if (path == matrix_ + "[]") row_ = 0;
    if (path == matrix_) has_matrix_ = true;
    open_.push_back({path, Container::array});
  }
  void end_array() override {
    const std::string path = open_.back().path;
    open_.pop_back();
    if (path == matrix_ + "[]") end_row();
    if (path == matrix_) end_ = place;
  }
  void key(std::string& name) override {
    open_.back().key = name;
    if (open_.back().path != "$.input" || std::ranges::find(kInputKeys, name) != std::end(kInputKeys)) return;
    const std::string_view near = nearest(name, kInputKeys);
    std::string all;
    for (const std::string_view known : kInputKeys) all += str(all.empty() ? "" : ", ", known);
    fail(begin_of("\""), str("input.", io::printable(name), ": no such key",
                             near.empty() ? "" : str("; did you mean ", near, "?"), " (there are ", all, ")"));
  }
  void count(std::uint64_t value) override {
    const std::string path = value_path(), shown = std::to_string(value);
    if (path == matrix_ + "[][]") {
      if (value > kMaxPairs) fail(begin_of(shown), str("count = ", value, ": must be below 2^31"));
      result_.counts.counts.push_back(static_cast<std::int32_t>(value));
      sum_ += value;
      ++row_;
      return;
    }
    require_no_count(shown);
    refuse_op(shown);
    if (!path.starts_with(kInput)) return;
    const std::string name = path.substr(kInput.size());
    if (name == kBalance) refuse_setting(shown);
    for (const auto& [known, most] : kSettings) {
      if (name == known && value > most) fail(begin_of(shown), str(name, " = ", value, ": must be at most ", most));
    }
    numbers_[name] = {static_cast<Index>(std::min(value, kMaxPairs)), begin_of(shown)};
  }
  void text(std::string& value) override {
    const std::string shown = '"' + io::printable(value) + '"';
    require_no_count(shown);
    if (value != "plan") refuse_op(shown);
    if (value != "greedy" && value != "exact") return refuse_setting(shown);
    if (value_path() != std::string(kInput) + kBalance) return refuse_setting(shown);
    result_.asked.balance = value == "exact" ? ops::EchoBalance::exact : ops::EchoBalance::greedy;
  }
  void other(std::string_view shown) override {
    require_no_count(shown);
    refuse_op(shown);
    refuse_setting(shown);
  }

  EchoFile result() {
    if (!has_matrix_)
      fail(place, "there are no counts: must be R arrays of E numbers, or an object with them as count of its input");
    EchoCounts& counts = result_.counts;
    const std::string where = at(end_);
    if (rows_ == 0) fail(end_, "there are no counts: must be an array for each of R ranks");
    counts.ranks = rows_;
    counts.experts = experts_;
    const Index ranks = setting("ranks").value_or(grid_.ranks), experts = setting("experts").value_or(grid_.experts);
    for (const auto& [want_ranks, want_experts, who] :
         {std::tuple(ranks, experts, matrix_ == "$" ? "--ep and --experts" : "input"),
          std::tuple(grid_.ranks, grid_.experts, "--ep and --experts")}) {
      if ((want_ranks != 0 && want_ranks != rows_) || (want_experts != 0 && want_experts != experts_))
        fail(end_, str("counts are ", rows_, " x ", experts_, ": must be ", want_ranks == 0 ? rows_ : want_ranks, " x ",
                       want_experts == 0 ? experts_ : want_experts, ", by ", who));
    }
    require_echo_grid(rows_, experts_, where);
    if (sum_ > kMaxPairs) fail(end_, str("sum of counts = ", sum_, ": must be below 2^31"));
    if (const auto slots = setting("slots_per_rank")) {
      const io::JsonPlace& place_of = numbers_.at("slots_per_rank").place;
      if (*slots > experts_)
        fail(place_of, str("slots_per_rank = ", *slots, ": must be at most the number of experts, ", experts_));
      if (const std::string rule = why_too_many_columns(rows_, experts_, *slots); !rule.empty())
        fail(place_of, str("slots_per_rank = ", *slots, ": ", rule));
    }
    result_.asked.slots = setting("slots_per_rank");
    result_.asked.min_pairs = setting("min_pairs");
    if (result_.asked.balance == ops::EchoBalance::exact && result_.asked.min_pairs.value_or(0) != 0)
      fail(numbers_.at("min_pairs").place,
           str("min_pairs = ", *result_.asked.min_pairs, ": must be 0 with balance = \"exact\""));
    return std::move(result_);
  }

 private:
  enum class Container { object, array };
  struct Open {
    std::string path;
    Container container;
    std::string key = {};
  };
  struct Number {
    Index value = 0;
    io::JsonPlace place;
  };
  static constexpr std::string_view kInput = "$.input.";
  static constexpr const char* kBalance = "balance";

  /// Where the next value lies: "$.input.count[][]".
  std::string value_path() const {
    if (open_.empty()) return "$";
    const Open& in = open_.back();
    return in.container == Container::array ? in.path + "[]" : in.path + '.' + in.key;
  }
  /// Where the value begins that was read last.
  io::JsonPlace begin_of(std::string_view shown) const {
    std::size_t line_begin = 0;
    for (std::size_t line = 1; line < place.line; ++line) line_begin = text_.find('\n', line_begin) + 1;
    const std::size_t read = line_begin + place.column;  // bytes
    const std::size_t begin = read == 0 ? 0 : begin_of_value(text_, read - 1, shown);
    const std::string_view before = text_.substr(0, begin);
    const std::size_t last_end = before.rfind('\n');
    return {1 + static_cast<std::size_t>(std::ranges::count(before, '\n')),
            last_end == std::string_view::npos ? begin + 1 : begin - last_end};
  }
  std::string at(const io::JsonPlace& place_of) const { return str("[", file_, "] ", io::text_of(place_of), ", "); }
  [[noreturn]] void fail(const io::JsonPlace& place_of, const std::string& rule) const {
    throw InputError(at(place_of) + rule);
  }
  /// Something that is no whole number must not lie where a count or a row of counts belongs.
  void require_no_count(std::string_view shown) const {
    const std::string path = value_path();
    if (path == matrix_ + "[][]")
      fail(begin_of(shown),
           str("count = ", shown, ": must be a whole number from 0 to ", kMaxPairs, without_sign(shown)));
    if (path == matrix_ + "[]") fail(begin_of(shown), str("row = ", shown, ": must be an array of counts"));
    if (path == matrix_ && path != "$")
      fail(begin_of(shown), str("count = ", shown, ": must be R arrays of E numbers"));
  }
  static const char* without_sign(std::string_view shown) { return shown == "-0" ? ", without a sign: write 0" : ""; }
  void refuse_op(std::string_view shown) const {
    if (value_path() == "$.op")
      fail(begin_of(shown), str("op = ", shown,
                                ": must be \"plan\", whose input has the counts; entries of other ops "
                                "are no plans"));
  }
  /// A value of another kind must not lie where a setting of the input belongs.
  void refuse_setting(std::string_view shown) const {
    const std::string path = value_path();
    for (const auto& [name, most] : kSettings) {
      if (path == str(kInput, name))
        fail(begin_of(shown), str(name, " = ", shown, ": must be a whole number from 0 on", without_sign(shown)));
    }
    if (path == std::string(kInput) + kBalance)
      fail(begin_of(shown), str(kBalance, " = ", shown, ": must be \"greedy\" or \"exact\""));
  }
  void end_row() {
    if (rows_ > 0 && row_ != experts_)
      fail(place, str("array ", rows_ + 1, " has ", row_, " counts: must have ", experts_, ", as the first"));
    experts_ = row_;
    ++rows_;
  }
  std::optional<Index> setting(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second.value);
  }

  std::string_view text_;
  std::string file_, matrix_ = "$";
  EchoGrid grid_;
  std::vector<Open> open_;
  std::map<std::string, Number> numbers_;
  bool has_matrix_ = false;
  Index rows_ = 0, experts_ = 0, row_ = 0;
  std::uint64_t sum_ = 0;
  io::JsonPlace end_;
  EchoFile result_;
};

}  // namespace

EchoFile read_echo_counts(std::string_view text, std::string_view file, const EchoGrid& grid) {
  CountsVisitor visitor(text, file, grid);
  io::visit_json(text, {.name = file}, visitor);
  return visitor.result();
}

std::string why_too_many_columns(Index ranks, Index experts, Index slots) {
  const Index most = ops::max_echo_slots(ranks, experts);
  if (ranks == 1 || slots <= most) return "";
  return str("times ", ranks, " ranks, plus ", experts, " experts, must be at most ", ops::kMaxGroups, "; use at most ",
             most, most == 0 ? ", or fewer experts" : "");
}

void require_echo_grid(Index ranks, Index experts, const std::string& where) {
  if (ranks > ops::kMaxEchoRanks)
    throw InputError(str(where, "ranks = ", ranks, ": must be at most ", ops::kMaxEchoRanks));
  if (experts < 1 || experts > ops::kMaxEchoExperts)
    throw InputError(str(where, "experts = ", experts, ": must be from 1 to ", ops::kMaxEchoExperts));
  if (experts % ranks != 0)
    throw InputError(str(where, "experts = ", experts, ": must be a multiple of the ", ranks, " ranks"));
}

}  // namespace megalith::apps
