#pragma once
#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "megalith/tensor/tensor_slice.h"

namespace megalith::checkpoint {

/// A box of elements of a global tensor, without its name. Manifests list boxes, and resharding intersects them.
struct Box {
  std::array<Index, Shape::kMaxRank> offset{};
  Shape shape;
  bool operator==(const Box&) const = default;
};
inline Box box_of(const TensorSlice& slice) { return {slice.offset, slice.local}; }

/// True if the box has the rank of `global` and lies in it. No sum overflows for any input.
bool is_inside(const Box& box, const Shape& global);

/// The common elements; empty if there are none. Both boxes must have the same rank.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Cuts `part`, a box inside `whole`, into runs of elements that are contiguous in the row-major memory of both. Inner
/// dimensions that `part` covers fully are merged, so a block of rows is one run.
class Runs {
 public:
  Runs(const Box& part, const Box& whole);
  Index length() const { return length_; }  ///< elements of a run
  Index count() const { return count_; }
  /// Elements from the start of whole's memory to the first one of the run.
  Index start(Index run) const;

 private:
  std::array<Index, Shape::kMaxRank> sizes_{}, strides_{};  // of the dimensions that count runs
  int outer_ = 0;
  Index first_ = 0, length_ = 1, count_ = 1;
};

/// The elements [begin, end) of a tensor in row-major order as boxes, ascending. Whole rows are one box. The partial
/// rows before and after them are cut into boxes in the same way. Each box is contiguous in the tensor's memory.
std::vector<Box> boxes_of_range(const Shape& shape, Index begin, Index end);

/// Calls f(block, first) for blocks that cover a slice in row-major order. A block is a slice of the same tensor with
/// at most `max_elements` elements. It is contiguous in the slice's memory and begins at element `first`. Blocks are
/// whole rows if a row has at most `max_elements`.
template <class F>
void for_each_block(const TensorSlice& slice, Index max_elements, F&& f);

/// Copies the elements that both boxes contain. `from` and `to` are their row-major memories.
void copy_common(const Box& from_box, const std::byte* from, const Box& to_box, std::byte* to, Index element_bytes);

/// A box of a slice's own elements as a slice of the global tensor.
TensorSlice slice_of(const TensorSlice& slice, const Box& box);

template <class F>
void for_each_block(const TensorSlice& slice, Index max_elements, F&& f) {
  const Index total = slice.local.numel();
  const Index row = slice.local.rank() == 0 || slice.local[0] == 0 ? 1 : total / slice.local[0];
  const Index step = row <= max_elements ? max_elements / row * row : max_elements;
  for (Index begin = 0; begin < total; begin += step) {
    Index first = begin;
    for (const Box& box : boxes_of_range(slice.local, begin, std::min(begin + step, total))) {
      f(slice_of(slice, box), first);
      first += box.shape.numel();
    }
  }
}

}  // namespace megalith::checkpoint
