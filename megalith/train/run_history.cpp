#include "megalith/train/run_history.h"

#include <ctime>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

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

}  // namespace

std::string history_line(std::string_view event, Index step, std::string_view text) {
  const std::string quoted = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return str("{\"event\":\"", event, "\",\"step\":", step, ",\"time\":\"", utc_now(), "\",\"text\":", quoted, "}\n");
}

}  // namespace megalith::train
