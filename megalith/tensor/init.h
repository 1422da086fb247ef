#pragma once
#include <cstdint>

namespace megalith {

/// The initial values of a parameter's elements.
enum class Init : std::uint8_t { zeros, ones, normal };

}  // namespace megalith
