#pragma once
#include <cstdint>

namespace megalith {

/// What the elements of a parameter are when training begins.
enum class Init : std::uint8_t { zeros, ones, normal };

}  // namespace megalith
