#include "megalith/ops/cuda/gemm.h"

#include <cstring>
#include <set>

#include "megalith/base/error.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/ops/matmul.h"
#include "megalith/ops/scaled_matmul.h"
#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/support/twin.h"
#include "tests/train/small_run.h"

// The table of GEMM algorithms on a GPU: that it names what runs, and that running it again gives the same bits.
namespace megalith {
namespace {

/// Products of a layer's kinds on one Exec: their results as bits.
class Products {
 public:
  Products() : twins_(Device::cuda, DType::bf16) {}
  Exec& exec() { return twins_.tested(); }
  ops::GemmChooser& chooser() { return ops::gemm_chooser(exec()); }

  std::vector<std::vector<double>> run() {
    twins_.release();
    constexpr Index kTokens = 512, kIn = 256, kOut = 1024;
    const Tensor x = twins_.in({kTokens, kIn}, 1).tested, w = twins_.in({kOut, kIn}, 2).tested,
                 b = twins_.in({kOut}, 3).tested, dy = twins_.in({kTokens, kOut}, 4).tested,
                 dw = twins_.in_f32({kOut, kIn}, 5).tested, sums = twins_.in_f32({kIn}, 6).tested;
    const Tensor y = twins_.out({kTokens, kOut}).tested, z = twins_.out({kTokens, kOut}).tested,
                 g = twins_.out({kTokens, kOut}).tested, dz = twins_.out({kTokens, kIn}).tested,
                 dx = twins_.out({kTokens, kIn}).tested;
    Exec& ex = exec();
    ops::matmul(ex, {.a = x, .b = w, .bias = b, .c = y, .transpose_b = ops::Transpose::yes});
    ops::matmul(ex, {.a = dy, .b = w, .c = dx});
    ops::matmul(ex, {.a = dy, .b = x, .c = dw, .transpose_a = ops::Transpose::yes, .write = ops::Write::accumulate});
    ops::matmul_gelu(ex, {.x = x, .w = w, .bias = b, .z = z, .y = g});
    ops::matmul_gelu_backward(ex, {.dy = dy, .w = w, .z = x, .dz = dz, .bias_grad = sums});
    std::vector<std::vector<double>> results;
    for (const Tensor& result : {y, dx, dw, z, g, dz, sums}) results.push_back(support::values_on(ex, result));
    return results;
  }

 private:
  support::Twins twins_;
};

TEST(GpuGemms, ATableReproducesAlgorithmsAndBits) {
  MEGALITH_NEEDS_GPUS(1);
  Products first;
  first.run();
  const ops::GemmTable met = first.chooser().current();
  ASSERT_GE(met.products.size(), 3u);  // those with GELU run by the library on some GPUs only
  const ops::GemmChoices choices = ops::choose_gemms(first.chooser(), met, {}, {});
  EXPECT_EQ(choices.timed, choices.table);
  first.chooser().use(choices.table);
  const auto want = first.run();
  EXPECT_EQ(first.chooser().current(), choices.table);

  const ops::GemmTable read = ops::parse_gemm_table(ops::gemm_table_text(choices.table), "table");
  Products second;
  second.chooser().use(read);
  EXPECT_EQ(second.run(), want);
  EXPECT_EQ(second.chooser().current(), choices.table);
  const std::vector<ops::KnownGemms> known = {{"table", read}};
  const ops::GemmChoices again = ops::choose_gemms(second.chooser(), met, known, {});
  EXPECT_TRUE(again.timed.empty());
  EXPECT_TRUE(again.warnings.empty());
}

// The library's first choice follows from the problem alone, not from what an Exec has done before.
TEST(GpuGemms, WithoutATableTheChoiceIsTheSameEveryTime) {
  MEGALITH_NEEDS_GPUS(1);
  Products first, second;
  const auto want = first.run();
  EXPECT_EQ(second.run(), want);
  EXPECT_EQ(second.chooser().current(), first.chooser().current());
}

TEST(GpuGemms, ForeignEntriesAreIgnored) {
  MEGALITH_NEEDS_GPUS(1);
  Products plain;
  const auto want = plain.run();
  const ops::GemmTable first_choices = plain.chooser().current();
  ops::GemmTable foreign = first_choices;
  for (auto& [problem, algorithm] : foreign.products)
    algorithm = {.id = 9999, .tile = 1 << 20, .stages = -1, .split_k = 77, .custom = 123456789};
  for (const auto& [problem, algorithm] : foreign.products) {
    EXPECT_FALSE(plain.chooser().offers(problem, algorithm));
    EXPECT_TRUE(plain.chooser().offers(problem, first_choices.products.at(problem)));
  }
  Products other;
  other.chooser().use(foreign);
  EXPECT_EQ(other.run(), want);
  EXPECT_EQ(other.chooser().current(), first_choices);
  const std::vector<ops::KnownGemms> known = {{"foreign.json", foreign}};
  const ops::GemmChoices choices = ops::choose_gemms(other.chooser(), first_choices, known, {});
  EXPECT_EQ(choices.timed.products.size(), foreign.products.size());
  ASSERT_EQ(choices.warnings.size(), 1u);
}

TEST(GpuGemms, TimingUsesTheScratchItIsGivenAndNoOtherMemory) {
  MEGALITH_NEEDS_GPUS(1);
  Products products;
  products.run();
  const ops::GemmTable met = products.chooser().current();
  constexpr Index kBytes = Index{320} << 20;  // operands, and twice a cache
  const Buffer memory(2 * kBytes, Device::cuda);
  const std::span<std::byte> scratch(memory.data(), kBytes);
  device::fill_bytes(Device::cuda, memory.data() + kBytes, 0xa5, kBytes, products.exec().stream());
  const ops::GemmChoices choices = ops::choose_gemms(products.chooser(), met, {}, scratch);
  EXPECT_EQ(choices.timed.products.size(), met.products.size());
  std::vector<std::byte> bytes(static_cast<std::size_t>(2 * kBytes));
  products.exec().copy(bytes.data(), memory.data(), 2 * kBytes);
  products.exec().synchronize();
  const auto is_set = [](std::byte byte) { return byte != std::byte{0}; };
  EXPECT_TRUE(std::any_of(bytes.begin(), bytes.begin() + kBytes, is_set));
  EXPECT_TRUE(std::all_of(bytes.begin() + kBytes, bytes.end(), [](std::byte byte) { return byte == std::byte{0xa5}; }));
}

// A table may name our kernel for operands in E4M3, and then it runs.
TEST(GpuGemms, OurFp8KernelIsAmongTheAlgorithms) {
  MEGALITH_NEEDS_GPUS(1);
  if (device::gpus().front().capability != "9.0") GTEST_SKIP() << "needs a Hopper GPU";
  constexpr Index kRows = 516, kColumns = 392, kDepth = 656;
  support::Twins twins(Device::cuda, DType::bf16);
  Exec& ex = twins.tested();
  const ops::Operand a = ops::make_operand(ex, kRows, kDepth, ops::ScaleBlocks::vectors),
                     b = ops::make_operand(ex, kColumns, kDepth, ops::ScaleBlocks::squares);
  ops::quantise(ex, {.x = twins.in({kRows, kDepth}, 1).tested, .straight = a});
  ops::quantise(ex, {.x = twins.in({kColumns, kDepth}, 2).tested, .straight = b});
  const auto run = [&](ops::ScaledKernel kernel) {
    const Tensor c = twins.out({kRows, kColumns}).tested;
    ops::scaled_matmul(ex, {.a = a, .b = b, .c = c, .kernel = kernel});
    return support::values_on(ex, c);
  };
  run(ops::ScaledKernel::chosen);
  ops::GemmChooser& chooser = ops::gemm_chooser(ex);
  ops::GemmTable table = chooser.current();
  ASSERT_EQ(table.products.size(), 1u);
  const auto entry = table.products.begin();
  for (const auto& [columns, kernel] :
       {std::pair{128, ops::ScaledKernel::tiles_128}, {192, ops::ScaledKernel::tiles_192}}) {
    entry->second = {.id = -1, .tile = columns};
    EXPECT_TRUE(chooser.offers(entry->first, entry->second));
    chooser.use(ops::parse_gemm_table(ops::gemm_table_text(table), "table"));
    EXPECT_EQ(chooser.current(), table);
    EXPECT_EQ(run(ops::ScaledKernel::chosen), run(kernel)) << columns;
  }
  entry->second.tile = 256;
  EXPECT_FALSE(chooser.offers(entry->first, entry->second));
  const ops::GemmAlgorithm fastest = chooser.fastest(entry->first, {});
  EXPECT_TRUE(chooser.offers(entry->first, fastest));
}

// A depth that is no multiple of 8 is none of our kernel's: the library's epilogues take it.
TEST(GpuGemms, GeluIsTheLibrarysWhereItIsNotOurs) {
  MEGALITH_NEEDS_GPUS(1);
  constexpr Index kTokens = 130, kDepth = 76, kFeatures = 264;
  support::Twins twins(Device::cuda, DType::bf16);
  Exec& ex = twins.tested();
  const Tensor x = twins.in({kTokens, kDepth}, 1).tested, w = twins.in({kFeatures, kDepth}, 2).tested,
               b = twins.in({kFeatures}, 3).tested, v = twins.in({kDepth, kFeatures}, 4).tested,
               sums = twins.in_f32({kFeatures}, 5).tested;
  const Tensor z = twins.out({kTokens, kFeatures}).tested, y = twins.out({kTokens, kFeatures}).tested,
               dz = twins.out({kTokens, kFeatures}).tested;
  ops::matmul_gelu(ex, {.x = x, .w = w, .bias = b, .z = z, .y = y});
  ops::matmul_gelu_backward(ex, {.dy = x, .w = v, .z = z, .dz = dz, .bias_grad = sums});
  std::set<ops::GemmEpilogue> ran;
  for (const auto& [problem, algorithm] : ops::gemm_chooser(ex).current().products) ran.insert(problem.epilogue);
  EXPECT_TRUE(ran.contains(ops::GemmEpilogue::bias_gelu));
  EXPECT_TRUE(ran.contains(ops::GemmEpilogue::gelu_backward_bias_grad) ||
              ran.contains(ops::GemmEpilogue::gelu_backward));
  ex.synchronize();
}

// The library wants rows of multiples of 8 for an activation, and is not asked about others.
TEST(GpuGemms, GeluOfOddWidthsIsNotTheLibrarys) {
  MEGALITH_NEEDS_GPUS(1);
  constexpr Index kTokens = 130, kDepth = 76;
  support::Twins twins(Device::cuda, DType::bf16);
  for (const Index features : {Index{260}, Index{257}}) {
    const support::Twin x = twins.in({kTokens, kDepth}, 1), w = twins.in({features, kDepth}, 2),
                        b = twins.in({features}, 3), v = twins.in({kDepth, features}, 4),
                        sums = twins.in_f32({features}, 5), saved = twins.in({kTokens, features}, 6);
    const support::Twin z = twins.out({kTokens, features}), y = twins.out({kTokens, features}),
                        dz = twins.out({kTokens, features});
    twins.run([&](Exec& ex) {
      ops::matmul_gelu(ex, {.x = x.on(ex), .w = w.on(ex), .bias = b.on(ex), .z = z.on(ex), .y = y.on(ex)});
      ops::matmul_gelu_backward(
          ex, {.dy = x.on(ex), .w = v.on(ex), .z = saved.on(ex), .dz = dz.on(ex), .bias_grad = sums.on(ex)});
    });
    for (const support::Twin& result : {z, y, dz, sums}) EXPECT_LE(twins.error(result), 1e-2) << features;
  }
  for (const auto& [problem, algorithm] : ops::gemm_chooser(twins.tested()).current().products)
    EXPECT_EQ(ops::bytes_of(problem).activation, 0) << problem.m << " x " << problem.n << " x " << problem.k;
}

TEST(GpuGemms, WhatALibraryDoesNotOfferCannotBeTimed) {
  MEGALITH_NEEDS_GPUS(1);
  Exec ex(Device::cuda);
  const ops::GemmProblem impossible{
      .m = 7, .n = 5, .k = 3, .in = DType::f32, .out = DType::f16, .epilogue = ops::GemmEpilogue::none};
  EXPECT_NE(error_of<BackendError>([&] { ops::gemm_chooser(ex).fastest(impossible, {}); }).find("7 x 5 x 3"),
            std::string::npos);
}

config::RunPlan gpu_plan() {
  config::RunPlan plan = support::small_plan({}, "fp32", 4);
  plan.device = Device::cuda;
  plan.train.precision = "bf16";
  plan.model.hidden_size = 256;
  plan.model.ffn_hidden_size = 1024;
  return plan;
}

struct Trained {
  std::vector<double> losses;
  ops::GemmChoices choices;
  std::set<ops::GemmProblem> met;  ///< in the warm-up and in all steps and an evaluation
};

Trained train_with(const config::RunPlan& plan, const std::vector<ops::KnownGemms>& known) {
  Trained trained;
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    trained.choices = engine.choose_gemms(known);
    const support::HashedBatches source(plan.model.vocab_size);
    train::Progress progress;
    for (Index step = 0; step < plan.train.steps; ++step) {
      trained.losses.push_back(engine.step(source, progress, train::Stop::no).loss);
      progress = {step + 1, progress.samples + plan.train.global_batch};
    }
    engine.evaluate(source, plan.train.global_batch);
    for (const auto& [problem, algorithm] : ops::gemm_chooser(engine.exec()).current().products)
      trained.met.insert(problem);
  });
  return trained;
}

TEST(GpuGemms, ARerunGivenTheTableHasTheSameLosses) {
  MEGALITH_NEEDS_GPUS(1);
  const config::RunPlan plan = gpu_plan();
  const Trained first = train_with(plan, {});
  const Trained second = train_with(plan, {{"table", first.choices.table}});
  EXPECT_EQ(second.losses, first.losses);
  EXPECT_EQ(second.choices.table, first.choices.table);
  EXPECT_TRUE(second.choices.timed.empty());
}

// A product that a step meets first would be chosen while other ranks wait, and stand in no table.
TEST(GpuGemms, TheWarmUpMeetsEveryProductOfAStepAndAnEvaluation) {
  MEGALITH_NEEDS_GPUS(1);
  for (const Index micro_batch : {1, 8}) {
    config::RunPlan plan = gpu_plan();
    plan.train.micro_batch = micro_batch;
    const Trained trained = train_with(plan, {});
    std::set<ops::GemmProblem> in_table;
    for (const auto& [problem, algorithm] : trained.choices.table.products) in_table.insert(problem);
    EXPECT_EQ(trained.met, in_table) << micro_batch;
  }
}

TEST(GpuGemms, HeuristicNeedsNoTable) {
  MEGALITH_NEEDS_GPUS(1);
  config::RunPlan plan = gpu_plan();
  plan.train.gemm = ops::GemmChoice::heuristic;
  const Trained first = train_with(plan, {}), second = train_with(plan, {});
  EXPECT_TRUE(first.choices.table.empty());
  EXPECT_EQ(second.losses, first.losses);
}

TEST(GpuGemms, ACheckpointKeepsTheTable) {
  MEGALITH_NEEDS_GPUS(1);
  const TempDir dir;
  const config::RunPlan plan = gpu_plan();
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  ops::GemmTable table;
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    table = engine.choose_gemms().table;
    train::Saver(engine, plan, {1, 2}, *fs, dir.path()).save({});
  });
  ASSERT_FALSE(table.empty());
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    const std::optional<train::Resumed> resumed = train::Saver(engine, plan, {1, 2}, *fs, dir.path()).resume();
    ASSERT_TRUE(resumed.has_value());
    EXPECT_EQ(resumed->gemm_table, ops::gemm_table_text(table));
  });
}

}  // namespace
}  // namespace megalith
