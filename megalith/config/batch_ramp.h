#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::config {

/// train.batch_ramp = "START:END:SAMPLES": the batch grows from START to END in multiples of START, evenly over the
/// first SAMPLES samples of a run.
struct BatchRamp {
  Index start = 0, end = 0, samples = 0;

  /// Nothing unless the text has three positive integers, and END is a multiple of START and above it.
  static std::optional<BatchRamp> of(std::string_view text);
  std::string text() const;

  /// Samples of the step that begins after `consumed` ones. With K = end / start sizes: start (1 + floor((K - 1)
  /// consumed / samples)), at most `end`. A function of `consumed` alone.
  Index batch_after(Index consumed) const;
  /// start, 2 start, ..., end.
  std::vector<Index> sizes() const;
  /// Steps until the batch is `end`, and the samples that they consume.
  struct Length {
    Index steps = 0, samples = 0;
  };
  Length length() const;
};

}  // namespace megalith::config
