#pragma once
#include "megalith/base/types.h"

namespace megalith::tasks {

/// A part of a text, in bytes.
struct TextRange {
  Index begin = 0, end = 0;
  Index size() const { return end - begin; }
  bool operator==(const TextRange&) const = default;
};

}  // namespace megalith::tasks
