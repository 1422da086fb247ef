#pragma once
#include <array>
#include <string>

#include "megalith/tensor/shape.h"

namespace megalith {

/// The part of a global tensor that one rank holds: a box. It makes initialisation, checkpoints and digests independent
/// of the grid.
struct TensorSlice {
  std::string name;                             ///< global name, as "layers.3.mlp.up.weight"
  Shape global;                                 ///< shape of the whole tensor
  std::array<Index, Shape::kMaxRank> offset{};  ///< first element held, per dimension
  Shape local;                                  ///< shape held

  bool operator==(const TensorSlice&) const = default;
  /// A slice that is the whole tensor.
  static TensorSlice whole(std::string tensor_name, const Shape& shape) {
    return {std::move(tensor_name), shape, {}, shape};
  }
};

}  // namespace megalith
