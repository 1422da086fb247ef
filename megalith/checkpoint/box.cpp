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

/// Appends the elements [begin, end) of the tensor that lies at `offset` along the dimensions before `dim` and spans
/// those from it on.
void add_range(const Shape& shape, int dim, Box at_offset, Index begin, Index end, std::vector<Box>& boxes) {
  if (begin == end) return;
  Index row = 1;
  for (int i = dim + 1; i < shape.rank(); ++i) row *= shape[i];
  const auto add_rows = [&](Index first, Index count) {
    Box box = at_offset;
    for (int i = 0; i < shape.rank(); ++i) {
      if (i < dim) continue;
      at(box.offset, i) = i == dim ? first : 0;
      box.shape.set(i, i == dim ? count : shape[i]);
    }
    boxes.push_back(box);
  };
  const auto add_part = [&](Index of_row, Index from, Index to) {
    Box inside = at_offset;
    at(inside.offset, dim) = of_row;
    inside.shape.set(dim, 1);
    add_range(shape, dim + 1, inside, from, to, boxes);
  };
  const Index first = begin / row, last = end / row;  // the rows of the first and of the last element but one
  if (first == last) return add_part(first, begin % row, end % row);
  if (begin % row != 0) add_part(first, begin % row, row);
  const Index whole = begin % row == 0 ? first : first + 1;
  if (whole < last) add_rows(whole, last - whole);
  if (end % row != 0) add_part(last, 0, end % row);
}

}  // namespace

std::vector<Box> boxes_of_range(const Shape& shape, Index begin, Index end) {
  std::vector<Box> boxes;
  add_range(shape, 0, {{}, shape}, begin, end, boxes);
  return boxes;
}

TensorSlice slice_of(const TensorSlice& slice, const Box& box) {
  TensorSlice part{slice.name, slice.global, box.offset, box.shape};
  for (int i = 0; i < box.shape.rank(); ++i) at(part.offset, i) += at(slice.offset, i);
  return part;
}

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
