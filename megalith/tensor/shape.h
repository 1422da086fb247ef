#pragma once
#include <array>
#include <cassert>
#include <initializer_list>
#include <limits>
#include <optional>
#include <ostream>

#include "megalith/base/types.h"

namespace megalith {

/// Up to four sizes, held by value: making one never allocates.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<Index> dims) {
    assert(dims.size() <= kMaxRank);
    for (const Index dim : dims) dims_[static_cast<std::size_t>(rank_++)] = dim;
  }
  constexpr int rank() const { return rank_; }
  constexpr Index operator[](int i) const { return dims_[static_cast<std::size_t>(i)]; }
  constexpr void set(int i, Index size) { dims_[static_cast<std::size_t>(i)] = size; }
  constexpr void push_back(Index size) {
    assert(rank_ < kMaxRank);
    dims_[static_cast<std::size_t>(rank_++)] = size;
  }
  constexpr Index numel() const {
    Index n = 1;
    for (int i = 0; i < rank_; ++i) n *= (*this)[i];
    return n;
  }
  /// numel(), or nothing when a size is negative or the product of the sizes, zeros left out, passes 2^63 - 1. So
  /// strides and products in any order are safe, too.
  constexpr std::optional<Index> checked_numel() const {
    Index n = 1;
    bool empty = false;
    for (int i = 0; i < rank_; ++i) {
      const Index size = (*this)[i];
      if (size < 0 || (size > 1 && n > std::numeric_limits<Index>::max() / size)) return std::nullopt;
      empty = empty || size == 0;
      n *= size == 0 ? 1 : size;
    }
    return empty ? 0 : n;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<Index, kMaxRank> dims_{};
  int rank_ = 0;
};

inline std::ostream& operator<<(std::ostream& out, const Shape& shape) {
  out << '[';
  for (int i = 0; i < shape.rank(); ++i) out << (i > 0 ? ", " : "") << shape[i];
  return out << ']';
}

}  // namespace megalith
