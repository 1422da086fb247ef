#pragma once
#include <array>
#include <span>
#include <string>

#include "megalith/tensor/tensor.h"

namespace megalith::convert {

/// A tensor of a Hugging Face folder, and where its elements lie in a parameter of ours. `view` cuts its shape finer:
/// element (i, j, ...) of the view, in the file's row-major order, is ours at offset + i strides[0] + j strides[1] +
/// .... So fused, stacked and transposed weights of any family are data, and several tensors may fill one of ours.
struct HfTensor {
  std::string name;  ///< without the family's prefix
  Shape shape;
  Shape view;
  std::array<Index, Shape::kMaxRank> strides{};
  Index offset = 0;  ///< elements

  /// Whether it is the whole of ours, element by element.
  bool is_same_as(const Shape& ours) const;
  bool operator==(const HfTensor&) const = default;
};

/// The same elements in the same order.
HfTensor same(std::string name, const Shape& ours);
/// Theirs [in, out], ours [out, in].
HfTensor transposed(std::string name, const Shape& ours);
/// Rows of ours: `groups` times `rows` of them, each of `columns` elements (of a vector: 1), the groups
/// `group_stride` rows apart, from row `first_row` on. Theirs stacks them.
struct RowGroups {
  Index groups = 1, rows = 1, columns = 1;
  Index group_stride = 1, first_row = 0;
};
HfTensor row_groups(std::string name, const Shape& theirs, const RowGroups& rows);

/// Fills its part of `ours` (f32, f64) from its values in a file, converted. Takes no memory.
void copy_to_ours(const HfTensor& tensor, DType dtype, std::span<const std::byte> theirs, const Tensor& ours);
/// The other way, to theirs [shape] in f32.
void copy_to_theirs(const HfTensor& tensor, const Tensor& ours, std::span<float> theirs);

}  // namespace megalith::convert
