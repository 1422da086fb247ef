#include "megalith/convert/hf_tensor.h"

#include <cstring>
#include <utility>

namespace megalith::convert {
namespace {

/// The place in ours of every element of theirs, in their order: visit(place).
template <class Visit>
void for_each_place(const HfTensor& tensor, const Visit& visit) {
  std::array<Index, 4> sizes = {1, 1, 1, 1}, strides{};
  const int rank = tensor.view.rank();
  for (int i = 0; i < rank; ++i) {
    sizes[static_cast<std::size_t>(4 - rank + i)] = tensor.view[i];
    strides[static_cast<std::size_t>(4 - rank + i)] = tensor.strides[static_cast<std::size_t>(i)];
  }
  for (Index a = 0; a < sizes[0]; ++a) {
    for (Index b = 0; b < sizes[1]; ++b) {
      for (Index c = 0; c < sizes[2]; ++c) {
        const Index row = tensor.offset + a * strides[0] + b * strides[1] + c * strides[2];
        for (Index d = 0; d < sizes[3]; ++d) visit(row + d * strides[3]);
      }
    }
  }
}

}  // namespace

bool HfTensor::is_same_as(const Shape& ours) const { return *this == same(name, ours); }

HfTensor same(std::string name, const Shape& ours) {
  HfTensor tensor{.name = std::move(name), .shape = ours, .view = ours};
  Index stride = 1;
  for (int i = ours.rank() - 1; i >= 0; --i) {
    tensor.strides[static_cast<std::size_t>(i)] = stride;
    stride *= ours[i];
  }
  return tensor;
}

HfTensor transposed(std::string name, const Shape& ours) {
  const Shape theirs = {ours[1], ours[0]};
  return {.name = std::move(name), .shape = theirs, .view = theirs, .strides = {1, ours[1]}};
}

HfTensor row_groups(std::string name, const Shape& theirs, const RowGroups& rows) {
  return {.name = std::move(name),
          .shape = theirs,
          .view = {rows.groups, rows.rows, rows.columns},
          .strides = {rows.group_stride * rows.columns, rows.columns, 1},
          .offset = rows.first_row * rows.columns};
}

void copy_to_ours(const HfTensor& tensor, DType dtype, std::span<const std::byte> theirs, const Tensor& ours) {
  dispatch_wide(ours.dtype(), "import_hf", [&]<class Ours>() {
    dispatch_float(dtype, "import_hf", [&]<class Theirs>() {
      Ours* const out = ours.data<Ours>();
      const std::byte* in = theirs.data();
      for_each_place(tensor, [&](Index place) {
        Theirs value;
        std::memcpy(&value, in, sizeof(Theirs));  // a file's tensors need not be aligned
        in += sizeof(Theirs);
        out[place] = converted<Ours>(value);
      });
    });
  });
}

void copy_to_theirs(const HfTensor& tensor, const Tensor& ours, std::span<float> theirs) {
  dispatch_wide(ours.dtype(), "export_hf", [&]<class Ours>() {
    const Ours* const in = ours.data<Ours>();
    float* out = theirs.data();
    for_each_place(tensor, [&](Index place) { *out++ = static_cast<float>(in[place]); });
  });
}

}  // namespace megalith::convert
