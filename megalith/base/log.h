#pragma once
#include <string_view>

namespace megalith::log {

/// The one global sink, set by main. Lines go to standard error: "[level] text".
enum class Level { quiet, warning, info, debug };
void set_level(Level level);

void info(std::string_view text);
void warning(std::string_view text);
void debug(std::string_view text);

}  // namespace megalith::log
