#include "megalith/train/state_pieces.h"

#include <algorithm>
#include <string>

#include "megalith/checkpoint/box.h"

namespace megalith::train {
namespace {

/// A flat tensor over all elements of a buffer, or over those of some ranges.
struct FlatTensor {
  std::string_view prefix;
  Tensor flat;
  const std::vector<OwnRange>* ranges;
  bool is_whole = false;
};

/// Appends the elements of a parameter that lie in a range, box by box.
void add_range(const Param& param, const OwnRange& range, const FlatTensor& tensor, std::vector<StatePiece>& pieces) {
  const TensorSlice& slice = param.spec.slice;  // without padding rows, which lie after its elements
  const Index begin = std::max(param.offset, range.in_whole);
  const Index end = std::min(param.offset + slice.local.numel(), range.in_whole + range.count);
  if (begin >= end) return;
  Index offset = begin + (tensor.is_whole ? 0 : range.in_own - range.in_whole);
  for (const checkpoint::Box& box : checkpoint::boxes_of_range(slice.local, begin - param.offset, end - param.offset)) {
    StatePiece piece{checkpoint::slice_of(slice, box), tensor.flat.rows(offset, box.shape.numel())};
    piece.slice.name.insert(0, tensor.prefix);
    piece.values = piece.values.reshaped(box.shape);
    pieces.push_back(std::move(piece));
    offset += box.shape.numel();
  }
}

/// With a mesh what its rank owns only.
std::vector<StatePiece> pieces_of(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                  StateTensors which, const comm::Mesh* owner) {
  std::vector<StatePiece> pieces;
  std::size_t index = 0;
  for (const ParamBuffer& buffer : params.buffers()) {
    std::vector<FlatTensor> tensors = {{"", buffer.masters(), &buffer.own_ranges(), !buffer.has_copy()}};
    if (which == StateTensors::gradients) {
      tensors.clear();
      if (buffer.has_gradients()) tensors.push_back({kGradientOf, buffer.grads(), &buffer.own_ranges(), true});
    } else if (buffer.has_gradients()) {
      const optim::Optimizer& optimizer = optimizers[index++];
      if (which == StateTensors::values_and_moments) {
        tensors.push_back({kFirstMoment, optimizer.m(), &buffer.own_ranges()});
        tensors.push_back({kSecondMoment, optimizer.v(), &optimizer.second_moments()});
      }
    }
    // The coordinates 0 own all that is on a grid.
    const grid::PerAxis coordinates = owner == nullptr ? grid::PerAxis{} : owner->coordinates(buffer.grid());
    if (!buffer.is_sharded() && !grid::is_in_first_copy(coordinates)) continue;
    for (const Param& param : buffer.params()) {
      if (!grid::owns_in_copy(param.spec.placement, coordinates)) continue;
      for (const FlatTensor& tensor : tensors) {
        for (const OwnRange& range : *tensor.ranges) add_range(param, range, tensor, pieces);
      }
    }
  }
  return pieces;
}

}  // namespace

std::vector<StatePiece> updated_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                       StateTensors tensors) {
  return pieces_of(params, optimizers, tensors, nullptr);
}

std::vector<StatePiece> owned_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                     const comm::Mesh& mesh) {
  return pieces_of(params, optimizers, StateTensors::values_and_moments, &mesh);
}

}  // namespace megalith::train
