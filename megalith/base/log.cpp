#include "megalith/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace megalith::log {
namespace {

spdlog::logger& sink() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = spdlog::stderr_color_mt("megalith");
    made->set_pattern("[%^%l%$] %v");
    return made;
  }();
  return *logger;
}

}  // namespace

void set_level(Level level) {
  switch (level) {
    case Level::quiet:
      return sink().set_level(spdlog::level::off);
    case Level::warning:
      return sink().set_level(spdlog::level::warn);
    case Level::info:
      return sink().set_level(spdlog::level::info);
    case Level::debug:
      return sink().set_level(spdlog::level::debug);
  }
}

void info(std::string_view text) { sink().info("{}", text); }
void warning(std::string_view text) { sink().warn("{}", text); }
void debug(std::string_view text) { sink().debug("{}", text); }

}  // namespace megalith::log
