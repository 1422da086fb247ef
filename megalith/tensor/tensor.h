#pragma once
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "megalith/tensor/device.h"
#include "megalith/tensor/dtype.h"
#include "megalith/tensor/shape.h"

namespace megalith {

/// The maximal number of bytes of a tensor. A negative size or more throws ShapeError. So no sum of planned sizes
/// overflows, and no index into one.
inline constexpr Index kMaxBytes = Index{1} << 48;
Index bytes_of(const Shape& shape, DType dtype);

/// The planned tensor of a view; kExternal for memory outside a step's plan.
using TensorId = std::int32_t;
inline constexpr TensorId kExternal = -1;

/// A view: address, shape, dtype. Row-major and contiguous. Owns nothing; cheap to copy. While a step is recorded the
/// address is null, and only shape, dtype and id have a meaning.
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, const Shape& shape, DType dtype, TensorId id = kExternal)
      : data_(data), shape_(shape), id_(id), dtype_(dtype), defined_(true) {}

  const Shape& shape() const { return shape_; }
  Index dim(int i) const { return shape_[i]; }
  Index numel() const { return shape_.numel(); }
  Index bytes() const { return numel() * size_of(dtype_); }
  DType dtype() const { return dtype_; }
  TensorId id() const { return id_; }
  /// False for a default-constructed Tensor, which stands for no tensor, for example as the input of a pipeline's first
  /// stage.
  explicit operator bool() const { return defined_; }

  void* raw() const { return data_; }
  template <class T>
  T* data() const {
    if (dtype_ != dtype_of<T>) throw_dtype(dtype_of<T>);
    return static_cast<T*>(data_);
  }
  template <class T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(numel())};
  }

  /// Rows [begin, begin + count) of the first dimension. The plan entry stays the same.
  Tensor rows(Index begin, Index count) const;
  /// The same elements with another shape. Throws ShapeError if the numbers of elements differ.
  Tensor reshaped(const Shape& shape) const;

 private:
  [[noreturn]] void throw_dtype(DType wanted) const;

  void* data_ = nullptr;
  Shape shape_;
  TensorId id_ = kExternal;
  DType dtype_ = DType::f32;
  bool defined_ = false;
};

/// Throws ShapeError("[what] shape = ...: must be ...").
void expect_shape(const Tensor& tensor, const Shape& wanted, std::string_view what);
void expect_dtype(const Tensor& tensor, DType wanted, std::string_view what);
[[noreturn]] void throw_rank(const Tensor& tensor, int wanted, std::string_view what);

/// The sizes of a tensor of known rank: const auto [tokens, hidden] = dims<2>(x, "norm.x");
template <int kRank>
std::array<Index, kRank> dims(const Tensor& tensor, std::string_view what) {
  if (tensor.shape().rank() != kRank) throw_rank(tensor, kRank, what);
  std::array<Index, kRank> sizes{};
  for (int i = 0; i < kRank; ++i) sizes[static_cast<std::size_t>(i)] = tensor.dim(i);
  return sizes;
}

}  // namespace megalith
