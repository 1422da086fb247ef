#include "apps/bench/bench_fp8.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/ops/scaled_matmul.h"

namespace megalith::apps {
namespace {

using ops::ScaleBlocks;
using ops::Transpose;

/// A weight of a layer.
struct Fp8Layer {
  std::string_view name;
  Index out = 0, in = 0;
};
struct Fp8Model {
  std::string_view name;
  Index tokens = 0;  ///< of a microbatch
  std::array<Fp8Layer, 4> layers;
};
constexpr std::array<Fp8Model, 4> kFp8Models = {
    {{"llama-1b", 16384, {{{"qkv", 3072, 2048}, {"out", 2048, 2048}, {"up", 16384, 2048}, {"down", 2048, 8192}}}},
     {"llama-8b", 16384, {{{"qkv", 6144, 4096}, {"out", 4096, 4096}, {"up", 28672, 4096}, {"down", 4096, 14336}}}},
     {"gpt2-124m", 32768, {{{"qkv", 2304, 768}, {"out", 768, 768}, {"up", 3072, 768}, {"down", 768, 3072}}}},
     {"gpt2-1.2b", 8192, {{{"qkv", 4608, 1536}, {"out", 1536, 1536}, {"up", 6144, 1536}, {"down", 1536, 6144}}}}}};
constexpr std::array<std::string_view, kFp8Models.size()> kFp8ModelNames = [] {
  std::array<std::string_view, kFp8Models.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kFp8Models[i].name;
  return names;
}();

struct Fp8Row {
  std::string model, layer, what;
  Index m = 0, n = 0, k = 0;     ///< of a GEMM c [m, n]; 0 for quantising
  double bf16_s = 0, fp8_s = 0;  ///< 0: not measured; quantising has fp8_s alone
  double flops = 0, bytes = 0;
  std::vector<std::pair<std::string_view, double>> kernels = {};  ///< seconds of a GEMM by those of --kernel
};

/// Seconds of a layer's GEMMs, by what runs in FP8, with what quantising takes then.
struct Fp8Sums {
  std::string model;
  double bf16_s = 0, inputs_s = 0, all_s = 0;  ///< inputs: forward and data gradient
  bool is_whole = true;                        ///< every GEMM has a kernel in FP8
};

class Fp8Bench {
 public:
  Fp8Bench(OpsRunner& runner, std::vector<ops::ScaledKernel> kernels) : runner_(runner), kernels_(std::move(kernels)) {}

  void measure(const Fp8Model& model) {
    Fp8Sums sums{.model = std::string(model.name)};
    for (const Fp8Layer& layer : model.layers) measure_layer(model, layer, sums);
    sums_.push_back(sums);
  }

  nlohmann::ordered_json as_json() const {
    nlohmann::ordered_json out = {{"times", nlohmann::ordered_json::array()},
                                  {"layers", nlohmann::ordered_json::array()},
                                  {"unsupported", unsupported_}};
    for (const Fp8Row& row : rows_) {
      nlohmann::ordered_json one = {{"model", row.model}, {"layer", row.layer}, {"what", row.what}};
      if (row.flops > 0) one.update({{"m", row.m}, {"n", row.n}, {"k", row.k}, {"bf16_seconds", row.bf16_s}});
      if (row.fp8_s > 0) one["fp8_seconds"] = row.fp8_s;
      if (row.fp8_s > 0 && row.flops > 0) one["ratio"] = row.bf16_s / row.fp8_s;
      if (row.flops == 0) one["bytes_per_second"] = row.bytes / row.fp8_s;
      for (const auto& [name, seconds] : row.kernels) one["kernel_seconds"][std::string(name)] = seconds;
      out["times"].push_back(one);
    }
    for (const Fp8Sums& one : sums_) {
      if (!one.is_whole) continue;
      out["layers"].push_back({{"model", one.model},
                               {"bf16_seconds", one.bf16_s},
                               {"fp8_forward_dgrad_seconds", one.inputs_s},
                               {"fp8_seconds", one.all_s}});
    }
    return out;
  }

  void print() const {
    std::printf("%-10s %-5s %-22s %-16s %10s %8s %10s %8s %6s\n", "model", "layer", "rows x columns x depth", "what",
                "bf16 us", "TFLOP/s", "fp8 us", "TFLOP/s", "ratio");
    for (const Fp8Row& row : rows_) print_row(row);
    std::printf("GEMMs of a layer, with quantising its inputs and weights\n");
    for (const Fp8Sums& one : sums_) {
      if (one.is_whole) {
        std::printf("%-10s bf16 %.1f us; forward and dgrad in fp8 %.1f us (%.3f); all in fp8 %.1f us (%.3f)\n",
                    one.model.c_str(), 1e6 * one.bf16_s, 1e6 * one.inputs_s, one.bf16_s / one.inputs_s, 1e6 * one.all_s,
                    one.bf16_s / one.all_s);
      } else {
        std::printf("%-10s bf16 %.1f us\n", one.model.c_str(), 1e6 * one.bf16_s);
      }
    }
    for (const std::string& line : unsupported_) std::printf("not supported: %s\n", line.c_str());
  }

 private:
  struct Product {
    const char* what;
    ops::Matmul bf16;
    ops::ScaledMatmul fp8;
  };
  struct Place {
    const Fp8Model& model;
    const Fp8Layer& layer;
  };

  void measure_layer(const Fp8Model& model, const Fp8Layer& layer, Fp8Sums& sums) {
    Exec& ex = runner_.ex();
    const Index t = model.tokens, out = layer.out, in = layer.in;
    const Tensor x = runner_.random({t, in}), w = runner_.random({out, in}), dy = runner_.random({t, out}),
                 y = runner_.empty({t, out}), dx = runner_.empty({t, in}), dw = runner_.gradient({out, in});
    const auto operand = [&](Index rows, Index depth, ScaleBlocks blocks) {
      return ops::make_operand(ex, rows, depth, blocks);
    };
    constexpr auto kVectors = ScaleBlocks::vectors, kSquares = ScaleBlocks::squares;
    const ops::Operand x8 = operand(t, in, kVectors), x8_turned = operand(in, t, kVectors),
                       w8 = operand(out, in, kSquares), w8_turned = operand(in, out, kSquares),
                       dy8 = operand(t, out, kVectors), dy8_turned = operand(out, t, kVectors);
    const Place place{model, layer};
    const double x_alone = quantised(place, "quantise x", {.x = x, .straight = x8}),
                 x_both = quantised(place, "x, both forms", {.x = x, .straight = x8, .turned = x8_turned}),
                 dy_alone = quantised(place, "quantise dy", {.x = dy, .straight = dy8}),
                 dy_both = quantised(place, "dy, both forms", {.x = dy, .straight = dy8, .turned = dy8_turned}),
                 w_both = quantised(place, "w, both forms", {.x = w, .straight = w8, .turned = w8_turned});
    const Fp8Row forward = product(
        place, {"forward", {.a = x, .b = w, .c = y, .transpose_b = Transpose::yes}, {.a = x8, .b = w8, .c = y}});
    const Fp8Row dgrad = product(place, {"dgrad", {.a = dy, .b = w, .c = dx}, {.a = dy8, .b = w8_turned, .c = dx}});
    const Fp8Row wgrad = product(place, {"wgrad",
                                         {.a = dy, .b = x, .c = dw, .transpose_a = Transpose::yes},
                                         {.a = dy8_turned, .b = x8_turned, .c = dw}});
    sums.bf16_s += forward.bf16_s + dgrad.bf16_s + wgrad.bf16_s;
    sums.inputs_s += forward.fp8_s + dgrad.fp8_s + wgrad.bf16_s + x_alone + dy_alone + w_both;
    sums.all_s += forward.fp8_s + dgrad.fp8_s + wgrad.fp8_s + x_both + dy_both + w_both;
    sums.is_whole = sums.is_whole && forward.fp8_s > 0 && dgrad.fp8_s > 0 && wgrad.fp8_s > 0;
    ex.synchronize();
    ex.release();
  }

  double quantised(const Place& place, const char* what, const ops::Quantise& args) {
    const double bytes = static_cast<double>(args.x.bytes() + args.straight.values.bytes() +
                                             (args.turned ? args.turned.values.bytes() : 0));
    runner_.measure(str(place.model.name, ' ', place.layer.name, ' ', what), 0, bytes,
                    [&](Exec& e) { ops::quantise(e, args); });
    const double seconds = runner_.last().seconds;
    rows_.push_back({.model = std::string(place.model.name),
                     .layer = std::string(place.layer.name),
                     .what = what,
                     .fp8_s = seconds,
                     .bytes = bytes});
    return seconds;
  }

  Fp8Row product(const Place& place, const Product& product) {
    const Tensor& c = product.fp8.c;
    Fp8Row row{.model = std::string(place.model.name),
               .layer = std::string(place.layer.name),
               .what = product.what,
               .m = c.dim(0),
               .n = c.dim(1),
               .k = product.fp8.a.values.dim(1)};
    row.flops = 2 * static_cast<double>(row.m) * static_cast<double>(row.n) * static_cast<double>(row.k);
    const std::string name = str(row.model, ' ', row.layer, ' ', row.what);
    std::vector<OpsRunner::NamedOp> timed = {{name, [&](Exec& e) { ops::matmul(e, product.bf16); }}};
    std::vector<ops::ScaledKernel> kernels;  // of those after the first
    const auto add = [&](ops::ScaledKernel kernel) {
      ops::ScaledMatmul fp8 = product.fp8;
      fp8.kernel = kernel;
      const std::string what = str(name, " fp8 ", name_of(kernel));
      if (const std::string why = ops::why_no_scaled_matmul(runner_.ex(), fp8); !why.empty()) {
        unsupported_.push_back(str(what, ": ", why));
        return;
      }
      kernels.push_back(kernel);
      timed.push_back({what, [fp8](Exec& e) { ops::scaled_matmul(e, fp8); }});
    };
    add(ops::ScaledKernel::chosen);
    for (const ops::ScaledKernel kernel : kernels_) add(kernel);
    const std::vector<double> seconds = runner_.measure_in_turn(timed, row.flops, 0);
    row.bf16_s = seconds.front();
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      if (kernels[i] == ops::ScaledKernel::chosen)
        row.fp8_s = seconds[i + 1];
      else
        row.kernels.emplace_back(name_of(kernels[i]), seconds[i + 1]);
    }
    rows_.push_back(row);
    return row;
  }

  static void print_row(const Fp8Row& row) {
    std::printf("%-10s %-5s ", row.model.c_str(), row.layer.c_str());
    if (row.flops == 0) {
      std::printf("%-22s %-16s %10s %8s %10.1f %5.0f GB/s\n", "", row.what.c_str(), "", "", 1e6 * row.fp8_s,
                  1e-9 * row.bytes / row.fp8_s);
      return;
    }
    std::printf("%-22s %-16s %10.1f %8.2f ", str(row.m, " x ", row.n, " x ", row.k).c_str(), row.what.c_str(),
                1e6 * row.bf16_s, 1e-12 * row.flops / row.bf16_s);
    const auto print_fp8 = [&](double seconds) {
      std::printf("%10.1f %8.2f %6.3f\n", 1e6 * seconds, 1e-12 * row.flops / seconds, row.bf16_s / seconds);
    };
    if (row.fp8_s > 0)
      print_fp8(row.fp8_s);
    else
      std::printf("%10s\n", "-");
    for (const auto& [name, seconds] : row.kernels) {
      std::printf("%-10s %-5s %-22s %-36s", "", "", "", str("  kernel ", name).c_str());
      print_fp8(seconds);
    }
  }

  OpsRunner& runner_;
  std::vector<ops::ScaledKernel> kernels_;
  std::vector<Fp8Row> rows_;
  std::vector<Fp8Sums> sums_;
  std::vector<std::string> unsupported_;
};

/// On a GPU: a CPU has one kernel.
std::vector<ops::ScaledKernel> kernels_of(const OpsBench& options) {
  std::vector<ops::ScaledKernel> kernels;
  if (options.device == "cuda" && options.kernels.empty())
    kernels = {ops::ScaledKernel::library, ops::ScaledKernel::own};
  for (int i = 0; i < ops::kScaledKernels; ++i) {
    const auto kernel = static_cast<ops::ScaledKernel>(i);
    if (std::ranges::find(options.kernels, name_of(kernel)) != options.kernels.end()) kernels.push_back(kernel);
  }
  return kernels;
}

/// The layers of a GPT-2 of this width.
Fp8Model gpt_layers(const OpsBench& o) {
  const Index h = o.hidden;
  return {"gpt", o.tokens, {{{"qkv", 3 * h, h}, {"out", h, h}, {"up", 4 * h, h}, {"down", h, 4 * h}}}};
}

}  // namespace

std::span<const std::string_view> fp8_models() { return kFp8ModelNames; }

std::vector<std::string> fp8_kernels() {
  std::vector<std::string> names;
  for (int i = static_cast<int>(ops::ScaledKernel::library); i < ops::kScaledKernels; ++i)
    names.emplace_back(name_of(static_cast<ops::ScaledKernel>(i)));
  return names;
}

void bench_fp8(const OpsBench& options) {
  OpsBench in_bf16 = options;
  in_bf16.precision = "bf16";
  OpsRunner runner(in_bf16);
  Fp8Bench bench(runner, kernels_of(options));
  for (Fp8Model model : kFp8Models) {
    if (std::ranges::find(options.models, model.name) == options.models.end()) continue;
    if (options.has_tokens) model.tokens = options.tokens;
    bench.measure(model);
  }
  if (options.models.empty()) bench.measure(gpt_layers(options));
  if (options.format == "json")
    std::printf("%s\n", bench.as_json().dump(2).c_str());
  else
    bench.print();
}

}  // namespace megalith::apps
