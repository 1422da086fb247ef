#include "megalith/tensor/tensor.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {

Index bytes_of(const Shape& shape, DType dtype) {
  const std::optional<Index> elements = shape.checked_numel();
  if (!elements || *elements > kMaxBytes / size_of(dtype)) {
    throw ShapeError(str("[tensor] shape ", shape, " of ", name_of(dtype), ": must take at most 2^48 bytes"));
  }
  return *elements * size_of(dtype);
}

Tensor Tensor::rows(Index begin, Index count) const {
  if (shape_.rank() == 0 || begin < 0 || count < 0 || begin + count > dim(0)) {
    throw ShapeError(
        str("[Tensor::rows] rows ", begin, "..", begin + count, " of shape ", shape_, ": outside the tensor"));
  }
  Shape shape = shape_;
  shape.set(0, count);
  const Index row_bytes = dim(0) == 0 ? 0 : bytes() / dim(0);
  void* data = data_ == nullptr ? nullptr : static_cast<std::byte*>(data_) + begin * row_bytes;
  return {data, shape, dtype_, id_};
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (shape.numel() != numel()) {
    throw ShapeError(str("[Tensor::reshaped] shape ", shape_, " to ", shape, ": the number of elements must stay"));
  }
  return {data_, shape, dtype_, id_};
}

void Tensor::throw_dtype(DType wanted) const {
  throw ShapeError(str("[Tensor::data] dtype = ", name_of(dtype_), ": the caller reads it as ", name_of(wanted)));
}

void expect_shape(const Tensor& tensor, const Shape& wanted, std::string_view what) {
  if (!tensor) throw ShapeError(str("[", what, "] there is no tensor: must have shape ", wanted));
  if (tensor.shape() != wanted) throw ShapeError(str("[", what, "] shape = ", tensor.shape(), ": must be ", wanted));
}

void expect_dtype(const Tensor& tensor, DType wanted, std::string_view what) {
  if (tensor.dtype() == wanted) return;
  throw ShapeError(str("[", what, "] dtype = ", name_of(tensor.dtype()), ": must be ", name_of(wanted)));
}

void throw_rank(const Tensor& tensor, int wanted, std::string_view what) {
  throw ShapeError(str("[", what, "] shape = ", tensor.shape(), ": must have ", wanted, " dimensions"));
}

}  // namespace megalith
