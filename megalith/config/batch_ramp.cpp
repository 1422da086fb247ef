#include "megalith/config/batch_ramp.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "megalith/base/str.h"

namespace megalith::config {

std::optional<BatchRamp> BatchRamp::of(std::string_view text) {
  std::array<Index, 3> numbers{};
  const char *at = text.data(), *const end = text.data() + text.size();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0 && (at == end || *at++ != ':')) return std::nullopt;
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    if (error != std::errc() || numbers[i] < 1 || numbers[i] > std::numeric_limits<int>::max()) return std::nullopt;
    at = stop;
  }
  const BatchRamp ramp{numbers[0], numbers[1], numbers[2]};
  const bool is_legal = at == end && ramp.end > ramp.start && ramp.end % ramp.start == 0;
  return is_legal ? std::optional(ramp) : std::nullopt;
}

std::string BatchRamp::text() const { return str(start, ":", end, ":", samples); }

Index BatchRamp::batch_after(Index consumed) const {
  if (consumed >= samples) return end;
  return start * (1 + (end / start - 1) * consumed / samples);
}

std::vector<Index> BatchRamp::sizes() const {
  std::vector<Index> all;
  for (Index size = start; size <= end; size += start) all.push_back(size);
  return all;
}

BatchRamp::Length BatchRamp::length() const {
  Length length;
  for (Index batch = start; (batch = batch_after(length.samples)) < end; ++length.steps) length.samples += batch;
  return length;
}

}  // namespace megalith::config
