#include "megalith/report/trace_reader.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"

namespace megalith::apps {
namespace {

using nlohmann::json;

constexpr std::string_view kHeader = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", kFooter = "]}";
constexpr const char* kFix = "megalith train ... --trace FILE.json writes one";

class EventReader {
 public:
  explicit EventReader(const std::string& source) : source_(source) {}

  void read(std::string_view line, std::size_t number) {
    line_ = number;
    if (line.ends_with(',')) line.remove_suffix(1);
    const json event = io::read_json(line, {.name = source_, .first_line = number});
    const json& kind = member(event, "ph", json::value_t::string);
    TracedRank& rank = of_rank(member(event, "pid", json::value_t::number_unsigned).get<int>());
    if (kind == "X")
      read_bar(event, rank);
    else if (member(event, "name", json::value_t::string) == "groups")
      read_groups(member(event, "args", json::value_t::object), rank);
  }

  std::vector<TracedRank> ranks() {
    std::vector<TracedRank> all;
    for (auto& [number, rank] : ranks_) {
      std::ranges::stable_sort(rank.ops, {}, &TracedOp::begin_us);
      std::ranges::stable_sort(rank.calls, {}, &TracedCall::begin_us);
      if (!rank.ops.empty()) all.push_back(std::move(rank));
    }
    if (all.empty()) throw InputError(str('[', source_, "] has no ops; ", kFix));
    return all;
  }

 private:
  TracedRank& of_rank(int number) {
    TracedRank& rank = ranks_[number];
    rank.rank = number;
    return rank;
  }

  const json& member(const json& event, const char* key, json::value_t type) const {
    const auto found = event.is_object() ? event.find(key) : event.end();
    if (!event.is_object() || found == event.end() || found->type() != type)
      throw InputError(str('[', source_, "] line ", line_, ": ", key, ": is missing or of another type; ", kFix));
    return *found;
  }
  double number(const json& event, const char* key) const {
    const auto found = event.find(key);
    if (found == event.end() || !found->is_number())
      throw InputError(str('[', source_, "] line ", line_, ": ", key, ": must be a number of microseconds"));
    return found->get<double>();
  }

  void read_bar(const json& event, TracedRank& rank) const {
    const std::string& name = member(event, "name", json::value_t::string).get_ref<const std::string&>();
    const double begin = number(event, "ts"), end = begin + number(event, "dur");
    const json& phase = member(event, "cat", json::value_t::string);
    if (member(event, "tid", json::value_t::number_unsigned) == 0U) {
      rank.ops.push_back({name, phase == "communication", phase == "backward", begin, end});
      return;
    }
    const json& args = member(event, "args", json::value_t::object);
    const std::string& group = member(args, "group", json::value_t::string).get_ref<const std::string&>();
    rank.calls.push_back({name, group, begin, end});
  }

  void read_groups(const json& args, TracedRank& rank) const {
    for (const auto& [name, members] : args.items()) {
      const auto is_rank = [](const json& member) { return member.is_number_unsigned(); };
      if (!members.is_array() || !std::ranges::all_of(members, is_rank))
        throw InputError(str('[', source_, "] line ", line_, ": ", name, ": must be a list of ranks"));
      rank.groups[name] = members.get<std::vector<int>>();
    }
  }

  const std::string& source_;
  std::size_t line_ = 0;
  std::map<int, TracedRank> ranks_;
};

}  // namespace

bool is_trace(std::string_view text) { return text.starts_with(kHeader); }

std::vector<TracedRank> read_trace(std::string_view text, const std::string& source) {
  if (!is_trace(text)) throw InputError(str('[', source, "] is no trace of megalith; ", kFix));
  EventReader reader(source);
  text.remove_prefix(kHeader.size());
  for (std::size_t number = 2; !text.starts_with(kFooter); ++number) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) throw InputError(str('[', source, "] was cut: it has no end"));
    reader.read(text.substr(0, end), number);
    text.remove_prefix(end + 1);
  }
  return reader.ranks();
}

}  // namespace megalith::apps
