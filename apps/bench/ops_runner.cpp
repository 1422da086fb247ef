#include "apps/bench/ops_runner.h"

#include <array>
#include <cstdio>
#include <limits>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/run_plan.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/matmul.h"
#include "megalith/runtime/memory_plan.h"

#include "apps/bench/bench.h"
#include "apps/program/command.h"

namespace megalith::apps {
namespace {

constexpr Index kMaxRepeats = 20, kMinRepeats = 3;

/// Throws ConfigError for an unknown name, and for a precision that `device` does not compute in.
DType compute_dtype(const OpsBench& o, Device device) {
  const std::string precision = o.precision.empty() ? std::string(config::default_precision(device)) : o.precision;
  const std::optional<Policy> policy = config::policy_of(precision);
  if (!policy || policy->gemms != GemmFormat::compute)
    throw ConfigError(str("--precision = ", precision, ": must be fp64, fp32, bf16 or fp16"));
  if (device == Device::cuda && policy->compute == DType::f64)
    throw ConfigError("--precision = fp64: is for --device cpu, to check with: a GPU computes in bf16, fp16 or fp32");
  return policy->compute;
}

/// For sizes from the user.
void require_fits(const Shape& shape, DType dtype) try {
  static_cast<void>(bytes_of(shape, dtype));
} catch (const ShapeError&) {
  throw ConfigError(str("a tensor of shape ", shape, ": must take at most 2^48 bytes; choose smaller sizes"));
}
}  // namespace

OpsRunner::OpsRunner(const OpsBench& options)
    : options_(options),
      device_(options.device == "cuda" ? Device::cuda : Device::cpu),
      dtype_(compute_dtype(options, device_)) {
  require_device(device_);
  device::use(device_, 0);
  ex_.emplace(device_);
  ex_->set_determinism(options.deterministic ? Determinism::required : Determinism::not_required);
}

Tensor OpsRunner::random(const Shape& shape, DType dtype) {
  require_fits(shape, statistics_dtype(dtype));
  const TensorSlice slice = TensorSlice::whole(str("bench", count_++), {shape.numel()});
  const Tensor wide = ex_->tensor({shape.numel()}, statistics_dtype(dtype)), narrow = ex_->tensor(shape, dtype);
  ops::initialise(*ex_, {slice, Init::normal, 1}, wide, 1);
  ops::cast(*ex_, wide.reshaped(shape), narrow);
  return narrow;
}

Tensor OpsRunner::empty(const Shape& shape, DType dtype) {
  require_fits(shape, dtype);
  return ex_->tensor(shape, dtype);
}

Tensor OpsRunner::copied(const Shape& shape, DType dtype, const void* values) {
  const Tensor copy = ex_->tensor(shape, dtype);
  ex_->copy(copy.raw(), values, copy.bytes());
  ex_->synchronize();
  return copy;
}

class OpsRunner::PlannedOp {
 public:
  PlannedOp(OpsRunner& runner, const std::function<void(Exec&)>& op) : ex_(runner.ex()), op_(op) {
    Recording recording;
    Exec recorder(runner.device_, recording);
    recorder.set_determinism(ex_.determinism());
    recording.begin_phase();
    op(recorder);
    plan_ = make_plan(recording);
    scratch_ = Buffer(plan_.scratch_bytes, runner.device_);
  }
  void run() {
    ex_.begin(plan_.phases[0], nullptr, scratch_.data());
    op_(ex_);
    ex_.end();
  }

 private:
  Exec& ex_;
  const std::function<void(Exec&)>& op_;
  MemoryPlan plan_;
  Buffer scratch_;
};

std::vector<double> OpsRunner::measure_in_turn(const std::vector<NamedOp>& ops, double flops, double bytes) {
  std::vector<PlannedOp> planned;
  planned.reserve(ops.size());
  for (const NamedOp& op : ops) planned.emplace_back(*this, op.run);
  for (PlannedOp& op : planned) op.run();
  if (device_ == Device::cuda) {
    choose_gemms();
    for (PlannedOp& op : planned) op.run();
  }
  const int runs = device_ == Device::cuda ? 10 : 1;
  std::vector<std::vector<double>> times(ops.size());
  double taken = 0;
  const auto goes_on = [&] {
    const Index done = std::ssize(times.front());
    if (options_.repeats > 0) return done < options_.repeats;
    return done < kMaxRepeats &&
           (device_ == Device::cuda || done < kMinRepeats || taken < kSecondsOfAnOp * static_cast<double>(ops.size()));
  };
  while (goes_on()) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      TimePoint begin(device_), end(device_);
      begin.record(ex_->stream());
      for (int j = 0; j < runs; ++j) planned[i].run();
      end.record(ex_->stream());
      times[i].push_back(end.seconds_since(begin) / runs);
      taken += times[i].back();
    }
  }
  std::vector<double> medians;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    medians.push_back(median(std::move(times[i])));
    rows_.push_back({ops[i].name, medians.back(), flops, bytes});
  }
  return medians;
}

void OpsRunner::choose_gemms() {
  ops::GemmChooser& chooser = ops::gemm_chooser(*ex_);
  const ops::GemmTable seen = chooser.current();
  gemms_.platform = seen.platform;
  const std::array<ops::KnownGemms, 1> chosen = {{{"this bench", gemms_}}};
  gemms_ = ops::choose_gemms(chooser, seen, chosen, {}).table;
  chooser.use(gemms_);
}

void OpsRunner::measure_roofs() {
  const Index large = device_ == Device::cuda ? Index{1} << 30 : Index{1} << 27,
              edge = device_ == Device::cuda ? 8192 : 1024;
  const Tensor from = ex_->tensor({large}, DType::u8), to = ex_->tensor({large}, DType::u8);
  measure("roof: copy", 0, 2 * static_cast<double>(large), [&](Exec& e) { ops::copy(e, from, to); });
  const Tensor a = random({edge, edge}), b = random({edge, edge}), c = empty({edge, edge});
  const double side = static_cast<double>(edge);
  measure("roof: product", 2 * side * side * side, 0,
          [&](Exec& e) { ops::matmul(e, {.a = a, .b = b, .c = c, .transpose_b = ops::Transpose::yes}); });
  bytes_per_second_ = rows_[0].bytes / rows_[0].seconds;
  flops_per_second_ = rows_[1].flops / rows_[1].seconds;
  ex_->synchronize();
  ex_->release();
}

nlohmann::ordered_json OpsRunner::as_json() const {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const OpRow& row : rows_) {
    out.push_back({{"name", row.name},
                   {"seconds", row.seconds},
                   {row.flops > 0 ? "flops_per_second" : "bytes_per_second", row.rate()},
                   {"share_of_roof", share_of_roof(row)}});
  }
  return out;
}

void OpsRunner::print_table() const {
  for (const OpRow& row : rows_) {
    const bool is_large = row.flops > 0 && row.rate() >= 1e12;
    const char* const unit = row.flops == 0 ? "GB/s   " : is_large ? "TFLOP/s" : "GFLOP/s";
    std::printf("%-44s %10.1f us %9.1f %s %5.1f %%\n", row.name.c_str(), 1e6 * row.seconds,
                row.rate() * (is_large ? 1e-12 : 1e-9), unit, 100 * share_of_roof(row));
  }
}

void OpsRunner::print() const {
  if (options_.format == "json")
    std::printf("%s\n", as_json().dump(2).c_str());
  else
    print_table();
}

void OpsRunner::print(const nlohmann::ordered_json& facts, const std::string& title) const {
  if (options_.format == "json") {
    nlohmann::ordered_json out = facts;
    out["times"] = as_json();
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  std::printf("%s\n", title.c_str());
  print_table();
}

void add_device_options(CLI::App& command, std::string& device, std::string& precision) {
  command.add_option("--device", device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}))->capture_default_str();
  command.add_option("--precision", precision, "fp64, fp32, bf16 or fp16 (default: fp32 on the CPU, bf16 on a GPU)");
}

void add_repeat_options(CLI::App& command, OpsBench& options) {
  command
      .add_option("--repeats", options.repeats,
                  "Runs, of which the median counts (default: 20; on a CPU as many of them as take 0.2 s, at least 3)")
      ->check(between(1, std::numeric_limits<std::int32_t>::max()));
  command.add_flag("--deterministic", options.deterministic, "The same bits every time");
  command.add_option("--format", options.format, "text or json")->check(CLI::IsMember({"text", "json"}));
}

}  // namespace megalith::apps
