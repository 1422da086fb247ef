#include "megalith/train/state_pieces.h"

#include <algorithm>
#include <functional>
#include <string>

#include "megalith/checkpoint/box.h"

namespace megalith::train {
namespace {

using IsWanted = std::function<bool(const Param&)>;

/// A flat tensor over all elements of a buffer, or over those of its own ranges.
struct FlatTensor {
  std::string_view prefix;
  Tensor flat;
  bool is_whole = false;
};

/// Appends the elements of a parameter that lie in a range, box by box.
void add_range(const Param& param, const OwnRange& range, const FlatTensor& tensor, std::vector<StatePiece>& pieces) {
  const TensorSlice& slice = param.spec.slice;  // without padding rows, which lie behind its elements
  const Index begin = std::max(param.offset, range.in_whole);
  const Index end = std::min(param.offset + slice.local.numel(), range.in_whole + range.count);
  if (begin >= end) return;
  Index place = begin + (tensor.is_whole ? 0 : range.in_own - range.in_whole);
  for (const checkpoint::Box& box : checkpoint::boxes_of_range(slice.local, begin - param.offset, end - param.offset)) {
    StatePiece piece{checkpoint::slice_of(slice, box), tensor.flat.rows(place, box.shape.numel())};
    piece.slice.name.insert(0, tensor.prefix);
    piece.values = piece.values.reshaped(box.shape);
    pieces.push_back(std::move(piece));
    place += box.shape.numel();
  }
}

void add_buffer(const ParamBuffer& params, const std::vector<FlatTensor>& tensors, const IsWanted& is_wanted,
                std::vector<StatePiece>& pieces) {
  for (const Param& param : params.params()) {
    if (!is_wanted(param)) continue;
    for (const FlatTensor& tensor : tensors) {
      for (const OwnRange& range : params.own_ranges()) add_range(param, range, tensor, pieces);
    }
  }
}

/// `is_wanted(buffer)` returns the test of its parameters.
template <class WantedOf>
std::vector<StatePiece> pieces_of(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                  StateTensors which, WantedOf&& wanted_of) {
  std::vector<StatePiece> pieces;
  std::size_t index = 0;
  for (const ParamBuffer& buffer : params.buffers()) {
    std::vector<FlatTensor> tensors = {{"", buffer.masters(), !buffer.has_copy()}};
    if (buffer.has_gradients()) {
      const optim::Optimizer& optimizer = optimizers[index++];
      if (which == StateTensors::values_and_moments) {
        tensors.push_back({kFirstMoment, optimizer.m()});
        tensors.push_back({kSecondMoment, optimizer.v()});
      }
    }
    add_buffer(buffer, tensors, wanted_of(buffer), pieces);
  }
  return pieces;
}

}  // namespace

std::vector<StatePiece> updated_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                       StateTensors tensors) {
  return pieces_of(params, optimizers, tensors,
                   [](const ParamBuffer&) -> IsWanted { return [](const Param&) { return true; }; });
}

std::vector<StatePiece> owned_pieces(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                     const comm::Mesh& mesh) {
  return pieces_of(params, optimizers, StateTensors::values_and_moments, [&](const ParamBuffer& buffer) -> IsWanted {
    const grid::PerAxis place = mesh.place(buffer.grid());
    const bool writes = buffer.is_sharded() || grid::is_in_first_copy(place);
    return [place, writes](const Param& param) { return writes && grid::owns_in_copy(param.spec.placement, place); };
  });
}

}  // namespace megalith::train
