#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/ops/gemm_chooser.h"
#include "megalith/runtime/exec.h"

namespace megalith::apps {

/// The options of a bench of ops; each bench reads some of them.
struct OpsBench {
  std::string device = "cpu", precision, format = "text";
  Index tokens = 2048, hidden = 768, heads = 12, seq = 1024, vocab = 50304, params = Index{1} << 24;
  Index experts = 8, top_k = 2, ffn = 768;
  Index repeats = 0;  ///< 0: up to 20, within kSecondsOfAnOp on a CPU
  double dropout = 0;
  bool deterministic = false;
};

/// What the runs of an op may take on a CPU unless their number is given. Three are made in any case.
inline constexpr double kSecondsOfAnOp = 0.2;

/// One op's time and what it is measured by.
struct OpRow {
  std::string name;
  double seconds = 0;
  double flops = 0, bytes = 0;  ///< one of them
};

/// Runs ops on random data and keeps their times.
class OpsRunner {
 public:
  /// Throws ConfigError for a precision that is none, and for one that the device does not compute in.
  explicit OpsRunner(const OpsBench& options);

  Exec& ex() { return *ex_; }
  DType dtype() const { return dtype_; }
  Index element_bytes() const { return size_of(dtype_); }

  /// Normal numbers: constants run faster than what a model computes on.
  Tensor random(const Shape& shape) { return random(shape, dtype_); }
  Tensor random(const Shape& shape, DType dtype);
  Tensor gradient(const Shape& shape) { return random(shape, statistics_dtype(dtype_)); }
  Tensor empty(const Shape& shape) { return empty(shape, dtype_); }
  Tensor empty(const Shape& shape, DType dtype);
  /// u8 [sizeof(T)]: a structure that ops read on the device.
  template <class T>
  Tensor on_device(const T& value) {
    return copied({Index{sizeof value}}, DType::u8, &value);
  }
  /// i32 [values].
  Tensor on_device(const std::vector<std::int32_t>& values) {
    return copied({std::ssize(values)}, DType::i32, values.data());
  }

  /// What the device reaches: a large copy and a large square product.
  void measure_roofs();
  /// The median time of `op`, whose scratch is planned as in a step, and what it is measured by: operations or bytes,
  /// the other 0. On a GPU each time is that of ten runs in a row, so that the host's part of a launch does not show.
  void measure(const std::string& name, double flops, double bytes, const std::function<void(Exec&)>& op);
  void print() const;

 private:
  Tensor copied(const Shape& shape, DType dtype, const void* values);
  /// The products met so far run by their fastest algorithms from here on, as in training.
  void choose_gemms();

  OpsBench options_;
  Device device_;
  DType dtype_;
  std::optional<Exec> ex_;
  int count_ = 0;
  std::vector<OpRow> rows_;
  ops::GemmTable gemms_;
  double bytes_per_second_ = 1, flops_per_second_ = 1;
};

}  // namespace megalith::apps
