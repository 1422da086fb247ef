#include "megalith/train/state_pieces.h"

#include <algorithm>
#include <functional>
#include <string>

#include "megalith/checkpoint/box.h"

namespace megalith::train {
namespace {

/// What some ranges of a buffer's elements have of one kind.
struct RangedTensor {
  std::string_view prefix;
  const std::vector<OwnRange>* ranges;
  std::function<MasterValues(const OwnRange&)> part;  ///< its elements of a part of one of the ranges
};

/// Appends the elements of a parameter that lie in a range, box by box.
void add_range(const Param& param, const OwnRange& range, const RangedTensor& tensor, std::vector<StatePiece>& pieces) {
  const TensorSlice& slice = param.spec.slice;  // without padding rows, which lie after its elements
  const Index begin = std::max(param.offset, range.in_whole);
  const Index end = std::min(param.offset + slice.local.numel(), range.in_whole + range.count);
  if (begin >= end) return;
  OwnRange next{begin, begin + range.in_own - range.in_whole, 0};
  for (const checkpoint::Box& box : checkpoint::boxes_of_range(slice.local, begin - param.offset, end - param.offset)) {
    next.count = box.shape.numel();
    StatePiece& piece = pieces.emplace_back(checkpoint::slice_of(slice, box), tensor.part(next));
    piece.slice.name.insert(0, tensor.prefix);
    next.in_whole += next.count;
    next.in_own += next.count;
  }
}

/// With a mesh what its rank owns only.
std::vector<StatePiece> pieces_of(const ParamSet& params, const std::deque<optim::Optimizer>& optimizers,
                                  StateTensors which, const comm::Mesh* owner) {
  std::vector<StatePiece> pieces;
  std::size_t index = 0;
  for (const ParamBuffer& buffer : params.buffers()) {
    const auto of_own = [](const Tensor& flat) {
      return [&flat](const OwnRange& range) { return MasterValues{.whole = range.of_own(flat)}; };
    };
    const auto masters = [&buffer](const OwnRange& range) {
      MasterValues own = buffer.own_masters(range);
      if (!own.is_split()) own.copy = {};
      return own;
    };
    const auto gradients = [&buffer](const OwnRange& range) { return MasterValues{.whole = buffer.own_grads(range)}; };
    std::vector<RangedTensor> tensors = {{"", &buffer.own_ranges(), masters}};
    if (which == StateTensors::gradients) {
      tensors.clear();
      if (buffer.has_gradients()) tensors.push_back({kGradientOf, &buffer.own_ranges(), gradients});
    } else if (buffer.has_gradients()) {
      const optim::Optimizer& optimizer = optimizers[index++];
      if (which == StateTensors::values_and_moments) {
        tensors.push_back({kFirstMoment, &buffer.own_ranges(), of_own(optimizer.m())});
        tensors.push_back({kSecondMoment, &optimizer.second_moments(), of_own(optimizer.v())});
      }
    }
    // The coordinates 0 own all that is on a grid.
    const grid::PerAxis coordinates = owner == nullptr ? grid::PerAxis{} : owner->coordinates(buffer.grid());
    if (!buffer.is_sharded() && !grid::is_in_first_copy(coordinates)) continue;
    for (const Param& param : buffer.params()) {
      if (!grid::owns_in_copy(param.spec.placement, coordinates)) continue;
      for (const RangedTensor& tensor : tensors) {
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
