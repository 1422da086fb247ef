#include "megalith/train/run_history.h"

#include <algorithm>
#include <ctime>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/log_file.h"
#include "megalith/train/metrics.h"

namespace megalith::train {
namespace {

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  char text[32];
  ::gmtime_r(&now, &parts);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

/// The event of a line; null if the line was cut.
nlohmann::json parse_event(std::string_view line) {
  try {
    nlohmann::json event = io::read_json(line, {.name = kHistoryName});
    const auto has = [&](const char* key) { return event.is_object() && event.contains(key); };
    const bool is_whole = has("event") && has("text") && has("step") && event["event"].is_string() &&
                          event["text"].is_string() && event["step"].is_number_integer();
    if (is_whole) return event;
  } catch (const io::JsonError&) {  // cut
  }
  return nullptr;
}

}  // namespace

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string history_line(std::string_view event, Index step, std::string_view text, std::string_view members) {
  return str("{\"event\":\"", event, "\",\"step\":", step, ",\"time\":\"", utc_now(), "\",\"text\":", json_text(text),
             members, "}\n");
}

std::uint64_t history_bytes(io::Fs& fs, const io::Path& out) {
  return fs.exists(out / kHistoryName) ? fs.file_size(out / kHistoryName) : 0;
}

Attempt read_attempt(io::Fs& fs, const io::Path& out, std::uint64_t begin) {
  Attempt attempt;
  if (history_bytes(fs, out) <= begin) return attempt;
  const io::MappedFile file = fs.map(out / kHistoryName);
  std::string_view rest = file.text().substr(begin);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const nlohmann::json event = parse_event(line);
    if (event.is_null()) continue;
    const std::string& name = event["event"].get_ref<const std::string&>();
    if (name == "start" || name == "resume") attempt.first_step = event["step"].get<Index>() + 1;
    if (name == "fault" || name == "stop" || name == "end") attempt.reason = event["text"].get<std::string>();
  }
  if (attempt.first_step)
    attempt.last_step = std::max(*attempt.first_step - 1, last_step_of_metrics(fs, out / kMetricsName));
  return attempt;
}

void add_history_line(io::Fs& fs, const io::Path& out, const std::string& line) {
  const io::Path file = out / kHistoryName;
  const std::uint64_t size = history_bytes(fs, out);
  const bool is_cut = size > 0 && !fs.map(file).text().ends_with('\n');
  io::LogFile(fs, file).write(is_cut ? "\n" + line : line);
}

}  // namespace megalith::train
