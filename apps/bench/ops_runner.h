#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>

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
  bool deterministic = false, has_tokens = false;  ///< has_tokens: --tokens was given
  std::vector<std::string> models;                 ///< --model
  std::vector<std::string> kernels;                ///< --kernel
};

/// --device and --precision.
void add_device_options(CLI::App& command, std::string& device, std::string& precision);
/// --repeats, --deterministic and --format.
void add_repeat_options(CLI::App& command, OpsBench& options);

/// The time for all runs of an op on a CPU, unless their number is given. There are at least three.
inline constexpr double kSecondsOfAnOp = 0.2;

/// The time of one op, and its operations or bytes.
struct OpRow {
  std::string name;
  double seconds = 0;
  double flops = 0, bytes = 0;  ///< one of them is 0
  double rate() const { return (flops > 0 ? flops : bytes) / seconds; }
};

/// Runs ops on random data and keeps their times.
class OpsRunner {
 public:
  /// Throws ConfigError for an unknown precision, and for one that the device does not compute in.
  explicit OpsRunner(const OpsBench& options);

  Exec& ex() { return *ex_; }
  DType dtype() const { return dtype_; }
  Index element_bytes() const { return size_of(dtype_); }

  /// Normal numbers: constants run faster than the values of a model.
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

  /// The limits of the device: a large copy and a large square GEMM.
  void measure_roofs();
  /// The median time of `op`. Its scratch is planned as in a step. Pass its operations or its bytes, and 0 for the
  /// other. On a GPU each time is that of ten runs in a row, so that the launch overhead of the host does not count.
  void measure(const std::string& name, double flops, double bytes, const std::function<void(Exec&)>& op) {
    measure_in_turn({{name, op}}, flops, bytes);
  }
  /// The same for several ops that do the same work. Each repeat runs all of them, so that a GPU at its power limit
  /// slows all down alike. Returns their times.
  struct NamedOp {
    std::string name;
    std::function<void(Exec&)> run;
  };
  std::vector<double> measure_in_turn(const std::vector<NamedOp>& ops, double flops, double bytes);
  /// The last op measured.
  const OpRow& last() const { return rows_.back(); }
  void print() const;
  /// With what all rows have in common: a title of the table, members beside the rows in JSON.
  void print(const nlohmann::ordered_json& facts, const std::string& title) const;

 private:
  double share_of_roof(const OpRow& row) const {
    return row.rate() / (row.flops > 0 ? flops_per_second_ : bytes_per_second_);
  }
  nlohmann::ordered_json as_json() const;
  void print_table() const;
  Tensor copied(const Shape& shape, DType dtype, const void* values);
  /// An op with its plan and scratch.
  class PlannedOp;
  /// All GEMMs seen so far use their fastest algorithms from here on, as in training.
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
