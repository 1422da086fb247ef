#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "megalith/checkpoint/shard_io.h"

namespace megalith::checkpoint {

/// How the tensors of one name differ in two checkpoints.
struct TensorDifference {
  enum class Kind : std::uint8_t {
    equal,   ///< the same bits
    values,  ///< the same shape, other values or another dtype
    shape,   ///< different shapes: no value was compared
    only_in_a,
    only_in_b
  };
  std::string name;
  Kind kind = Kind::equal;
  const TensorRecord *a = nullptr, *b = nullptr;  ///< null: it is not there
  // Of Kind::values:
  Index different = 0;  ///< elements with other bits, as f64
  /// The largest |a - b|. NaN if a value is no number, or infinite, on one side only: that is larger than any number.
  double largest = 0;
  std::array<Index, Shape::kMaxRank> at{};  ///< the first element with this difference
  double value_a = 0, value_b = 0;          ///< its values
  double scale = 0;                         ///< the largest finite magnitude in both tensors

  /// Whether no element differs by more than `part` of `scale`. With 0: only -0 and 0 are within it.
  bool is_within(double part) const;
};

/// Compares all tensors of two checkpoints, of any grids, in the order of their names. Reads both in blocks: host
/// memory 32 MiB. Throws InputError if data is damaged.
void compare_tensors(CheckpointReader& a, CheckpointReader& b,
                     const std::function<void(const TensorDifference&)>& take);

/// Fills `into` (f32 or f64) with the mean of a slice over several checkpoints, which all have it in this shape and
/// dtype. Sums in f64, in the given order, and rounds once. Host memory: 24 MiB. Throws as CheckpointReader::read.
void read_mean(std::span<const std::unique_ptr<CheckpointReader>> readers, const TensorSlice& slice,
               const Tensor& into);

}  // namespace megalith::checkpoint
