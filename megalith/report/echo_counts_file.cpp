#include "megalith/report/echo_counts_file.h"

#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::apps {
namespace {

constexpr std::uint64_t kMostPairs = std::numeric_limits<std::int32_t>::max();

/// Keeps what matters of the file, and the place of each.
class CountsVisitor final : public io::JsonVisitor {
 public:
  CountsVisitor(std::string_view text, std::string_view file, const EchoGrid& grid)
      : text_(text), file_(file), grid_(grid) {}

  void start_object() override {
    require_no_count("an object");
    refuse_setting("an object");
    if (open_.empty()) matrix_ = "$.input.count";
    open_.push_back({value_path(), Container::object});
  }
  void end_object() override { open_.pop_back(); }
  void start_array() override {
    const std::string path = value_path();
    if (path == matrix_ + "[][]") require_no_count("an array");
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
  void key(std::string& name) override { open_.back().key = name; }
  void count(std::uint64_t value) override {
    const std::string path = value_path();
    if (path == matrix_ + "[][]") {
      if (value > kMostPairs) fail(begin_of(std::to_string(value)), str("count = ", value, ": must be below 2^31"));
      result_.counts.counts.push_back(static_cast<std::int32_t>(value));
      sum_ += value;
      ++row_;
      return;
    }
    require_no_count(std::to_string(value));
    if (!path.starts_with(kInput)) return;
    const std::string name = path.substr(kInput.size());
    if (name == kBalance) refuse_setting(std::to_string(value));
    if (name == "slots_per_rank" && value > ops::kMaxEchoSlots)
      fail(begin_of(std::to_string(value)), str("slots_per_rank = ", value, ": must be at most ", ops::kMaxEchoSlots));
    numbers_[name] = {static_cast<Index>(std::min(value, kMostPairs)), begin_of(std::to_string(value))};
  }
  void text(std::string& value) override {
    const std::string shown = '"' + io::printable(value) + '"';
    require_no_count(shown);
    if (value != "greedy" && value != "exact") return refuse_setting(shown);
    if (value_path() != std::string(kInput) + kBalance) return refuse_setting(shown);
    balance_ = value == "exact" ? ops::EchoBalance::exact : ops::EchoBalance::greedy;
  }
  void other(std::string_view shown) override {
    require_no_count(shown);
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
    const Index ranks = number_or("ranks", grid_.ranks), experts = number_or("experts", grid_.experts);
    for (const auto& [want_ranks, want_experts, who] :
         {std::tuple(ranks, experts, matrix_ == "$" ? "--ep and --experts" : "input"),
          std::tuple(grid_.ranks, grid_.experts, "--ep and --experts")}) {
      if ((want_ranks != 0 && want_ranks != rows_) || (want_experts != 0 && want_experts != experts_))
        fail(end_, str("counts are ", rows_, " x ", experts_, ": must be ", want_ranks == 0 ? rows_ : want_ranks, " x ",
                       want_experts == 0 ? experts_ : want_experts, ", by ", who));
    }
    require_echo_grid(rows_, experts_, where);
    if (sum_ > kMostPairs) fail(end_, str("sum of counts = ", sum_, ": must be below 2^31"));
    if (const Index slots = number_or("slots_per_rank", 0); slots > experts_)
      fail(numbers_.at("slots_per_rank").place,
           str("slots_per_rank = ", slots, ": must be at most the number of experts, ", experts_));
    if (matrix_ != "$") {
      result_.settings = EchoSettings{
          .slots = number_or("slots_per_rank", 0), .balance = balance_, .min_pairs = number_or("min_pairs", 0)};
      if (balance_ == ops::EchoBalance::exact && result_.settings->min_pairs != 0)
        fail(numbers_.at("min_pairs").place,
             str("min_pairs = ", result_.settings->min_pairs, ": must be 0 with balance = \"exact\""));
    }
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
  /// Where a number begins that was read last. Its reader has read the character after it, too. Of anything else: where
  /// it ends.
  io::JsonPlace begin_of(std::string_view shown) const {
    if (shown.find_first_not_of("-+.eE0123456789") != std::string_view::npos) return place;
    if (place.column > shown.size()) return {place.line, place.column - shown.size()};
    std::size_t begin = 0;  // of the line before, whose end the number is
    for (std::size_t line = 2; line < place.line; ++line) begin = text_.find('\n', begin) + 1;
    return {place.line - 1, text_.find('\n', begin) - begin - shown.size() + 1};
  }
  std::string at(const io::JsonPlace& place_of) const {
    return str("[", file_, "] line ", place_of.line, ", column ", place_of.column, ", ");
  }
  [[noreturn]] void fail(const io::JsonPlace& place_of, const std::string& rule) const {
    throw InputError(at(place_of) + rule);
  }
  /// Something that is no whole number must not lie where a count or a row of counts belongs.
  void require_no_count(std::string_view shown) const {
    const std::string path = value_path();
    if (path == matrix_ + "[][]")
      fail(begin_of(shown), str("count = ", shown, ": must be a whole number from 0 to 2147483647"));
    if (path == matrix_ + "[]") fail(begin_of(shown), str("row = ", shown, ": must be an array of counts"));
    if (path == matrix_ && path != "$") fail(place, str("count = ", shown, ": must be R arrays of E numbers"));
  }
  /// A value of another kind must not lie where a setting of the input belongs.
  void refuse_setting(std::string_view shown) const {
    const std::string path = value_path();
    for (const char* const name : {"ranks", "experts", "slots_per_rank", "min_pairs"}) {
      if (path == std::string(kInput) + name)
        fail(begin_of(shown), str(name, " = ", shown, ": must be a whole number from 0 on"));
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
  Index number_or(const std::string& name, Index other) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? other : found->second.value;
  }

  std::string_view text_;
  std::string file_, matrix_ = "$";
  EchoGrid grid_;
  std::vector<Open> open_;
  std::map<std::string, Number> numbers_;
  ops::EchoBalance balance_ = ops::EchoBalance::greedy;
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

void require_echo_grid(Index ranks, Index experts, const std::string& where) {
  if (ranks > ops::kMaxEchoRanks)
    throw InputError(str(where, "ranks = ", ranks, ": must be at most ", ops::kMaxEchoRanks));
  if (experts < 1 || experts > ops::kMaxEchoExperts)
    throw InputError(str(where, "experts = ", experts, ": must be from 1 to ", ops::kMaxEchoExperts));
  if (experts % ranks != 0)
    throw InputError(str(where, "experts = ", experts, ": must be a multiple of the ", ranks, " ranks"));
}

}  // namespace megalith::apps
