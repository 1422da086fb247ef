#include "megalith/checkpoint/box.h"

#include <algorithm>
#include <cstring>

namespace megalith::checkpoint {
namespace {

Index& at(std::array<Index, Shape::kMaxRank>& values, int i) { return values[static_cast<std::size_t>(i)]; }
Index at(const std::array<Index, Shape::kMaxRank>& values, int i) { return values[static_cast<std::size_t>(i)]; }

/// `part` as whole's own coordinates see it.
Box relative_to(const Box& part, const Box& whole) {
  Box moved = part;
  for (int i = 0; i < part.shape.rank(); ++i) at(moved.offset, i) -= at(whole.offset, i);
  return moved;
}

}  // namespace

bool is_inside(const Box& box, const Shape& global) {
  if (box.shape.rank() != global.rank()) return false;
  for (int i = 0; i < global.rank(); ++i) {
    if (at(box.offset, i) < 0 || box.shape[i] < 0 || box.shape[i] > global[i]) return false;
    if (at(box.offset, i) > global[i] - box.shape[i]) return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common;
  for (int i = 0; i < a.shape.rank(); ++i) {
    const Index begin = std::max(at(a.offset, i), at(b.offset, i));
    const Index end = std::min(at(a.offset, i) + a.shape[i], at(b.offset, i) + b.shape[i]);
    if (begin >= end) return {};
    at(common.offset, i) = begin;
    common.shape.push_back(end - begin);
  }
  return common;
}

Runs::Runs(const Box& part, const Box& whole) {
  const Box local = relative_to(part, whole);
  const int rank = local.shape.rank();
  Index stride = 1;
  bool merging = true;  // while every dimension further in is covered fully
  for (int i = rank - 1; i >= 0; --i) {
    first_ += at(local.offset, i) * stride;
    if (merging) {
      length_ *= local.shape[i];
      merging = local.shape[i] == whole.shape[i];
    } else {
      at(sizes_, outer_) = local.shape[i];  // innermost first
      at(strides_, outer_) = stride;
      ++outer_;
      count_ *= local.shape[i];
    }
    stride *= whole.shape[i];
  }
  if (length_ == 0) count_ = 0;
}

Index Runs::start(Index run) const {
  Index start = first_;
  for (int i = 0; i < outer_; ++i) {
    start += run % at(sizes_, i) * at(strides_, i);
    run /= at(sizes_, i);
  }
  return start;
}

void copy_common(const Box& from_box, const std::byte* from, const Box& to_box, std::byte* to, Index element_bytes) {
  const std::optional<Box> common = intersect(from_box, to_box);
  if (!common) return;
  const Runs source(*common, from_box), target(*common, to_box);
  const Index length = std::min(source.length(), target.length());  // the longer one is a multiple of the shorter
  const Index source_pieces = source.length() / length, target_pieces = target.length() / length;
  const Index total = source.count() * source_pieces;
  for (Index i = 0; i < total; ++i) {
    const Index begin = source.start(i / source_pieces) + i % source_pieces * length;
    const Index end = target.start(i / target_pieces) + i % target_pieces * length;
    std::memcpy(to + end * element_bytes, from + begin * element_bytes,
                static_cast<std::size_t>(length * element_bytes));
  }
}

}  // namespace megalith::checkpoint
