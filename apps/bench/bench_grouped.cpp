#include "apps/bench/bench_grouped.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <numeric>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/nn/moe/moe_config.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/grouped_matmul.h"

#include "apps/bench/expert_loads.h"
#include "apps/program/command.h"

namespace megalith::apps {
namespace {

struct GroupedBench {
  OpsBench ops;
  Index rows = 0, groups = 0, n = 1536, k = 768;  ///< rows, groups: 0 if they were not given
  std::string sizes = "even", backend;            ///< backend "": all that can run
  std::vector<std::string> products;              ///< empty: all
  bool gemm = false;
};

constexpr std::array<std::string_view, 3> kProducts = {"forward", "dgrad", "wgrad"};
constexpr std::string_view kGrouped = "grouped", kLoop = "loop";  // as moe.gemm

/// Groups in a buffer, on the device and on the host.
struct GroupLayout {
  Index alignment = 1, rows = 0;  ///< of the buffer
  std::vector<std::int32_t> host;
  ops::GroupRows groups;
};

GroupLayout layout_of(OpsRunner& bench, const std::vector<Index>& sizes, Index alignment) {
  const auto count = sizes.size();
  GroupLayout layout{.alignment = alignment, .host = std::vector<std::int32_t>(2 * count), .groups = {}};
  for (std::size_t g = 0; g < count; ++g) {
    layout.host[g] = static_cast<std::int32_t>(layout.rows);
    layout.host[count + g] = static_cast<std::int32_t>(sizes[g]);
    layout.rows = round_up(layout.rows + sizes[g], alignment);
  }
  const auto half = [&](std::size_t first) {
    return bench.on_device(std::vector<std::int32_t>(layout.host.begin() + static_cast<std::ptrdiff_t>(first),
                                                     layout.host.begin() + static_cast<std::ptrdiff_t>(first + count)));
  };
  layout.groups = {.begin = half(0), .rows = half(count), .alignment = alignment, .host = {}};
  return layout;
}

/// Random rows of groups, and zeros between them.
Tensor rows_of_groups(OpsRunner& bench, const GroupLayout& layout, Index columns) {
  const Tensor rows = bench.random({layout.rows, columns});
  const std::size_t count = layout.host.size() / 2;
  for (std::size_t g = 0; g < count; ++g) {
    const Index end = layout.host[g] + layout.host[count + g];
    const Index next = g + 1 < count ? layout.host[g + 1] : layout.rows;
    if (next > end) ops::fill(bench.ex(), rows.rows(end, next - end), 0);
  }
  return rows;
}

/// The products that were asked for, of one backend.
class GroupedProducts {
 public:
  GroupedProducts(OpsRunner& bench, const GroupedBench& options, const std::vector<Index>& sizes)
      : bench_(bench), options_(options), sizes_(sizes) {
    rows_ = std::accumulate(sizes.begin(), sizes.end(), Index{0});
  }

  void measure(std::string_view backend, Index alignment) {
    GroupLayout layout = layout_of(bench_, sizes_, alignment);
    layout.groups.host = ops::HostGroups(layout.host);
    const ops::GroupRows groups = layout.groups;
    const Tensor w = bench_.random({std::ssize(sizes_), options_.n, options_.k});
    const Tensor x = rows_of_groups(bench_, layout, options_.k), dy = rows_of_groups(bench_, layout, options_.n);
    if (wants("forward")) {
      const Tensor y = bench_.empty(dy.shape());
      run("forward", backend, [=](Exec& e) { ops::grouped_matmul(e, {.x = x, .w = w, .y = y, .groups = groups}); });
    }
    if (wants("dgrad")) {
      const Tensor dx = bench_.empty(x.shape());
      run("dgrad", backend,
          [=](Exec& e) { ops::grouped_matmul_input_grad(e, {.dy = dy, .w = w, .dx = dx, .groups = groups}); });
    }
    if (wants("wgrad")) {
      const Tensor dw = bench_.gradient(w.shape());
      run("wgrad", backend,
          [=](Exec& e) { ops::grouped_matmul_weight_grad(e, {.dy = dy, .x = x, .dw = dw, .groups = groups}); });
    }
    bench_.ex().synchronize();
    bench_.ex().release();
  }

  /// One GEMM of all rows with one weight.
  void measure_gemm() {
    const Tensor x = bench_.random({rows_, options_.k}), dy = bench_.random({rows_, options_.n}),
                 w = bench_.random({options_.n, options_.k}), y = bench_.empty(dy.shape()),
                 dx = bench_.empty(x.shape()), dw = bench_.gradient(w.shape());
    constexpr std::string_view kOne = "one GEMM";
    if (wants("forward"))
      run("forward", kOne,
          [=](Exec& e) { ops::matmul(e, {.a = x, .b = w, .c = y, .transpose_b = ops::Transpose::yes}); });
    if (wants("dgrad")) run("dgrad", kOne, [=](Exec& e) { ops::matmul(e, {.a = dy, .b = w, .c = dx}); });
    if (!wants("wgrad")) return;
    run("wgrad", kOne, [=](Exec& e) {
      ops::matmul(e, {.a = dy, .b = x, .c = dw, .transpose_a = ops::Transpose::yes, .write = ops::Write::accumulate});
    });
  }

 private:
  bool wants(std::string_view product) const {
    return options_.products.empty() || std::ranges::find(options_.products, product) != options_.products.end();
  }
  void run(std::string_view product, std::string_view backend, const std::function<void(Exec&)>& op) {
    const double flops =
        2 * static_cast<double>(rows_) * static_cast<double>(options_.n) * static_cast<double>(options_.k);
    bench_.measure(str(product, ' ', backend), flops, 0, op);
  }

  OpsRunner& bench_;
  const GroupedBench& options_;
  const std::vector<Index>& sizes_;
  Index rows_ = 0;
};

std::string why_no_kernel(ops::GroupedKernelFit fit, const OpsRunner& bench, const GroupedBench& o) {
  using enum ops::GroupedKernelFit;
  switch (fit) {
    case on_cpu:
      return "is for --device cuda: a CPU has a GEMM for each group, --backend loop";
    case wide_numbers:
      return str("computes in bf16 or fp16, and not in ", name_of(bench.dtype()));
    case odd_widths:
      return str("takes multiples of ", ops::kGroupedKernelWidths, ", and --n = ", o.n, ", --k = ", o.k);
    case other_gpu:
      return "is for Hopper GPUs (compute capability 9.0)";
    case fits:
      break;
  }
  return "";
}

/// Rows are numbered in 32 bits, also those that pad groups.
void require_numbered_rows(const std::vector<Index>& sizes, Index alignment) {
  constexpr Index kMaxRows = std::numeric_limits<std::int32_t>::max();
  Index rows = 0;
  for (const Index size : sizes) rows = round_up(rows + size, alignment);
  if (rows > kMaxRows)
    throw ConfigError(str("--rows = ", std::accumulate(sizes.begin(), sizes.end(), Index{0}),
                          ": with each group padded to ", alignment, " rows there are ", rows, ": must be at most ",
                          kMaxRows, "; use fewer rows, or --backend loop"));
}

void run_grouped_bench(const GroupedBench& o) {
  const std::vector<Index> sizes = group_sizes(*io::posix_fs(), o.sizes, o.rows, o.groups);
  OpsRunner bench(o.ops);
  const ops::GroupedKernelFit fit = ops::grouped_kernel_fit(bench.ex().device(), bench.dtype(), o.k, o.n);
  const std::string why = why_no_kernel(fit, bench, o);
  if (o.backend == kGrouped && !why.empty()) throw ConfigError(str("--backend = grouped: ", why));
  const bool runs_kernel = o.backend != kLoop && why.empty();
  if (runs_kernel) require_numbered_rows(sizes, ops::kGroupedKernelRows);
  bench.measure_roofs();
  GroupedProducts products(bench, o, sizes);
  if (runs_kernel) products.measure(kGrouped, ops::kGroupedKernelRows);
  if (o.backend != kGrouped) products.measure(kLoop, 1);
  if (o.gemm) products.measure_gemm();
  const Index rows = std::accumulate(sizes.begin(), sizes.end(), Index{0});
  const auto [least, most] = std::ranges::minmax(sizes);
  const nlohmann::ordered_json facts = {{"rows", rows}, {"n", o.n}, {"k", o.k}, {"sizes", sizes}};
  bench.print(facts,
              str(rows, " rows in ", sizes.size(), " groups of ", least, " to ", most, ", N ", o.n, ", K ", o.k));
}

}  // namespace

void add_bench_grouped(CLI::App& bench) {
  const auto o = std::make_shared<GroupedBench>();
  CLI::App* command = bench.add_subcommand(
      "grouped",
      "GEMMs of groups of rows with a weight each, as of the experts of a rank: y [M, N] = x [M, K] w^T (forward), "
      "dx = dy w (dgrad), dw += dy^T x (wgrad). FLOPs are 2 M N K, whatever the sizes of groups. Backends as moe.gemm: "
      "`grouped`, one kernel for all groups (Hopper GPUs, 16 bits), and `loop`, a GEMM for each group");
  add_device_options(*command, o->ops.device, o->ops.precision);
  const auto size = [&](const char* name, Index& value, const std::string& what, Index max) {
    return command->add_option(name, value, what)->check(between(1, max));
  };
  constexpr Index kMaxSize = std::numeric_limits<std::int32_t>::max();
  size("--rows", o->rows, "M: rows of all groups (default: 4096)", kMaxSize);
  size("--groups", o->groups, "Groups (default: 8)", ops::kMaxGroups);
  size("--n", o->n, "N: outputs of a row", kMaxSize)->capture_default_str();
  size("--k", o->k, "K: inputs of a row", kMaxSize)->capture_default_str();
  command
      ->add_option("--sizes", o->sizes,
                   "Rows of each group: even; zipf:S, in proportion to 1 / (1 + g)^S of group g; or a file of whole "
                   "numbers, whose sum and number take the place of --rows and --groups")
      ->capture_default_str();
  command->add_option("--product", o->products, "Some of forward, dgrad, wgrad, as forward,wgrad (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(std::vector<std::string>(kProducts.begin(), kProducts.end())));
  command->add_option("--backend", o->backend, "grouped or loop (default: all that can run)")
      ->check(CLI::IsMember(std::vector<std::string>{std::string(kGrouped), std::string(kLoop)}));
  command->add_flag("--gemm", o->gemm, "Also one plain GEMM of as many FLOPs for each product");
  add_repeat_options(*command, o->ops);
  command->callback([o] { run_grouped_bench(*o); });
}

}  // namespace megalith::apps
