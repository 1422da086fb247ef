#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/twin.h"

namespace megalith::ops {

/// Tensors of more than 2^31 elements: their last rows must be what a tensor of those rows alone gives.
class GpuLarge : public ::testing::Test {
 protected:
  static constexpr Index kTail = 8;

  void SetUp() override {
    MEGALITH_NEEDS_GPUS(1);
    ex_.emplace(Device::cuda);
  }
  Exec& ex() { return *ex_; }

  /// Random bf16 numbers.
  Tensor random(const Shape& shape) {
    const Tensor wide = ex().tensor({shape.numel()}, DType::f32), narrow = ex().tensor(shape, DType::bf16);
    initialise(ex(), {{"large", {shape.numel()}, {}, {shape.numel()}}, Init::normal, 1}, wide, 3);
    cast(ex(), wide.reshaped(shape), narrow);
    return narrow;
  }
  Tensor empty(const Shape& shape, DType dtype = DType::bf16) { return ex().tensor(shape, dtype); }
  Tensor filled(const Shape& shape, double value, DType dtype = DType::bf16) {
    const Tensor tensor = empty(shape, dtype);
    fill(ex(), tensor, value);
    return tensor;
  }
  static Tensor tail(const Tensor& tensor, Index rows = kTail) { return tensor.rows(tensor.dim(0) - rows, rows); }
  /// The number of rows of `width` numbers that are just more than 2^31.
  static Index rows_of(Index width) { return (Index{1} << 31) / width + 3 * kTail; }
  /// u8 [sizeof(T)]
  template <class T>
  Tensor structure(const T& value) {
    const Tensor copy = empty({Index{sizeof value}}, DType::u8);
    ex().copy(copy.raw(), &value, sizeof value);
    ex().synchronize();
    return copy;
  }
  Tensor copied(const Tensor& tensor) {
    const Tensor same = empty(tensor.shape(), tensor.dtype());
    copy(ex(), tensor, same);
    return same;
  }
  void expect_same_bytes(const Tensor& a, const Tensor& b, const char* what) {
    std::vector<std::byte> left(static_cast<std::size_t>(a.bytes())), right(static_cast<std::size_t>(b.bytes()));
    ex().copy(left.data(), a.raw(), a.bytes());
    ex().copy(right.data(), b.raw(), b.bytes());
    ex().synchronize();
    const auto [in_left, in_right] = std::ranges::mismatch(left, right);
    if (in_left == left.end()) return;
    const Index first = (in_left - left.begin()) / size_of(a.dtype());
    const auto number = [&](const std::vector<std::byte>& bytes) {
      bfloat16 value;
      std::memcpy(&value, bytes.data() + first * Index{sizeof value}, sizeof value);
      return a.dtype() == DType::bf16 ? converted<double>(value) : std::nan("");
    };
    ADD_FAILURE() << what << " differs from element " << first << " of " << a.numel() << " on: " << number(left)
                  << ", must be " << number(right);
  }

  /// Where the two may take their sums in other orders.
  void expect_close(const Tensor& a, const Tensor& b, double tolerance, const char* what) {
    const std::vector<double> left = support::values_on(ex(), a), right = support::values_on(ex(), b);
    double largest = 0, difference = 0;
    for (const double value : right) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < right.size(); ++i) difference = std::max(difference, std::abs(left[i] - right[i]));
    EXPECT_GT(largest, 0) << what;
    EXPECT_LE(difference, tolerance * largest) << what;
  }
  void expect_all(const Tensor& tensor, double want, const char* what) {
    for (const double value : support::values_on(ex(), tensor)) ASSERT_EQ(value, want) << what;
  }

  std::optional<Exec> ex_;
};

}  // namespace megalith::ops
