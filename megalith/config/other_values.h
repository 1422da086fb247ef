#pragma once
#include <string_view>

namespace megalith::config {

/// How a recipe says what this value of a key means in other programs: a sentence, or "" if it is not known.
std::string_view how_to_write(std::string_view key, std::string_view value);

}  // namespace megalith::config
