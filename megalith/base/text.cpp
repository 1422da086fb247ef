#include "megalith/base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

namespace megalith {
namespace {

template <class Real>
std::string shortest(Real value) {
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

}  // namespace

Index edit_distance(std::string_view a, std::string_view b) {
  std::vector<Index> row(b.size() + 1);
  std::iota(row.begin(), row.end(), Index{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    Index diagonal = row[0];
    row[0] = static_cast<Index>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const Index substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substituted, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string_view nearest(std::string_view name, std::span<const std::string_view> candidates) {
  std::string_view best;
  const auto length = static_cast<Index>(name.size());
  Index best_distance = std::clamp<Index>(length - 2, 1, std::max<Index>(2, length / 3)) + 1;
  for (const std::string_view candidate : candidates) {
    const Index distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string microseconds(double seconds) { return std::to_string(std::llround(seconds * 1e6)) + " us"; }

std::string human_bytes(Index bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text.data();
}

std::string exact(double value) { return shortest(value); }
std::string exact(float value) { return shortest(value); }

std::string hex64(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = kDigits[value >> (4 * i) & 15];
  return text;
}

}  // namespace megalith
