#include "megalith/optim/muon.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "megalith/comm/threads/thread_world.h"
#include "megalith/optim/optimizer.h"

namespace megalith::optim {
namespace {

/// A weight of f64 [rows, columns] with its matrices, on one rank.
struct OneWeight {
  OneWeight(Index rows, Index columns, std::vector<RowRuns> matrices, const OptimConfig& of_muon = {})
      : OneWeight(spec_of(rows, columns, std::move(matrices)), of_muon) {}
  explicit OneWeight(ParamSpec spec, const OptimConfig& of_muon = {})
      : config(of_muon), params({std::move(spec)}, {DType::f64, DType::f64}) {
    config.type = OptimizerType::muon;
    optimizer.emplace(config, params, alone->all(), alone->all());
    params.allocate(ledger);
    optimizer->allocate(ex, ledger);
  }
  static ParamSpec spec_of(Index rows, Index columns, std::vector<RowRuns> matrices) {
    ParamSpec spec{TensorSlice::whole("w", {rows, columns}), {rows, columns}};
    spec.matrices = std::move(matrices);
    return spec;
  }
  std::span<double> grad() { return params.at("w").grad.span<double>(); }
  std::span<double> value() { return params.at("w").value.span<double>(); }
  void step(ops::StepVerdict verdict) { optimizer->step(ex, Tensor(&verdict, {sizeof verdict}, DType::u8)); }

  OptimConfig config;
  std::unique_ptr<comm::World> alone = comm::dry_world(0, 1);
  MemoryLedger ledger{Device::cpu};
  ParamBuffer params;
  std::optional<Optimizer> optimizer;
  Exec ex;
};

/// Five steps of the polynomial from a singular value.
double polynomial(double x) {
  for (int i = 0; i < 5; ++i) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  return x;
}

// Rows (3, 0) and (0, 4) have the norm 5, so the singular values are 0.6 and 0.8. The factor is 0.2 sqrt(2).
TEST(Muon, SingularValuesGoThroughThePolynomial) {
  OneWeight w(2, 2, {{1, 1, 0}}, {.weight_decay = 0});
  w.grad()[0] = 3, w.grad()[3] = 4;
  w.step({.apply = 1, .factor = 7, .learning_rate = 0.1});
  const double scale = 0.1 * 0.2 * std::sqrt(2.0);
  EXPECT_NEAR(polynomial(0.6), 0.722876168617117, 1e-12);
  EXPECT_NEAR(polynomial(0.8), 1.1192039299160428, 1e-12);
  const double beside = 1 + 1e-7 / (5 * 7 * 1.95);  // of the norm
  EXPECT_NEAR(w.value()[0], -scale * polynomial(0.6 / beside), 1e-14);
  EXPECT_NEAR(w.value()[3], -scale * polynomial(0.8 / beside), 1e-14);
  EXPECT_EQ(w.value()[1], 0);
}

// m = 2 g after one step; then m = 0.5 * 2 g + 0: the second update is that of the direction g again, also of a 0
// gradient, by Nesterov 0 + 0.5 m.
TEST(Muon, MomentumCarriesADirectionOn) {
  OneWeight w(1, 2, {{1, 1, 0}}, {.weight_decay = 0, .muon_momentum = 0.5});
  w.grad()[0] = 1;
  w.step({.apply = 1, .factor = 2, .learning_rate = 1});
  EXPECT_EQ(w.optimizer->m().data<double>()[0], 2);
  const double first = w.value()[0];
  EXPECT_NEAR(first, -0.2 * std::sqrt(2.0) * polynomial(1 / (1 + 1e-7 / 3)), 1e-12);
  std::ranges::fill(w.grad(), 0);
  w.step({.apply = 1, .factor = 2, .learning_rate = 1});
  EXPECT_EQ(w.optimizer->m().data<double>()[0], 1);
  EXPECT_NEAR(w.value()[0], 2 * first, 1e-6) << "the norm is another one, beside which 1e-7 is added";
}

TEST(Muon, TheOriginalScaleIsOfTallMatrices) {
  const auto update = [](Index rows, Index columns, MuonScale scale) {
    OneWeight w(rows, columns, {{1, 1, 0}}, {.weight_decay = 0, .muon_scale = scale});
    w.grad()[0] = 1;
    w.step({.apply = 1, .learning_rate = 1});
    return -w.value()[0] / polynomial(1 / (1 + 1e-7 / 1.95));
  };
  EXPECT_NEAR(update(16, 4, MuonScale::original), 2, 1e-9);
  EXPECT_NEAR(update(4, 16, MuonScale::original), 1, 1e-9);
  EXPECT_NEAR(update(16, 4, MuonScale::match_rms_adamw), 0.8, 1e-9);
  EXPECT_NEAR(update(4, 16, MuonScale::match_rms_adamw), 0.8, 1e-9);
}

TEST(Muon, DecaysAndChangesNothingOfARefusedStep) {
  OneWeight w(2, 2, {{1, 1, 0}}, {.weight_decay = 0.5});
  std::ranges::fill(w.value(), 1.0);
  w.step({.apply = 1, .learning_rate = 0.1});  // of no gradient
  for (const double value : w.value()) EXPECT_NEAR(value, 0.95, 1e-15);
  std::ranges::fill(w.grad(), 1.0);
  w.step({.apply = 0, .learning_rate = 0.1});
  for (const double value : w.value()) EXPECT_NEAR(value, 0.95, 1e-15);
  for (const double m : w.optimizer->m().span<double>()) EXPECT_EQ(m, 0);
}

/// Numbers without any structure.
double number(Index i) { return std::sin(static_cast<double>(7 * i * i + 3 * i + 1)); }

// Two groups of 2 q heads, k and v, of 3 rows each.
TEST(Muon, QAndKAndVAreMatricesOfTheirOwn) {
  constexpr Index kColumns = 5;
  const RowRuns parts[] = {{6, 12, 0}, {3, 12, 6}, {3, 12, 9}};
  OneWeight qkv(24, kColumns, {parts[0], parts[1], parts[2]});
  for (Index i = 0; i < std::ssize(qkv.grad()); ++i) qkv.grad()[static_cast<std::size_t>(i)] = number(i);
  qkv.step({.apply = 1, .learning_rate = 1});
  for (const RowRuns& part : parts) {
    OneWeight alone(2 * part.run, kColumns, {{1, 1, 0}});
    const auto in_whole = [&](Index row, Index column) {
      const Index place = row / part.run * part.stride + part.first + row % part.run;
      return place * kColumns + column;
    };
    for (Index row = 0; row < 2 * part.run; ++row)
      for (Index column = 0; column < kColumns; ++column)
        alone.grad()[static_cast<std::size_t>(row * kColumns + column)] = number(in_whole(row, column));
    alone.step({.apply = 1, .learning_rate = 1});
    for (Index row = 0; row < 2 * part.run; ++row)
      for (Index column = 0; column < kColumns; ++column)
        EXPECT_EQ(qkv.value()[static_cast<std::size_t>(in_whole(row, column))],
                  alone.value()[static_cast<std::size_t>(row * kColumns + column)])
            << part.first << ", row " << row;
  }
}

// [experts, units, gate and up, columns].
TEST(Muon, EachExpertsGateAndUpAreMatricesOfTheirOwn) {
  constexpr Index kExperts = 3, kUnits = 4, kColumns = 5;
  const auto on_experts = [](ParamSpec spec) {
    spec.slice = TensorSlice::whole("w", {kExperts, kUnits, 2, kColumns});
    spec.held = spec.slice.local;
    spec.placement.grid = grid::GridKind::expert;
    return spec;
  };
  OneWeight all(on_experts(OneWeight::spec_of(1, 1, {{1, 2, 0}, {1, 2, 1}})));
  for (Index i = 0; i < std::ssize(all.grad()); ++i) all.grad()[static_cast<std::size_t>(i)] = number(i);
  all.step({.apply = 1, .learning_rate = 1});
  for (Index part = 0; part < 2 * kExperts; ++part) {
    OneWeight alone(kUnits, kColumns, {{1, 1, 0}});
    const auto in_all = [&](Index i) {
      return static_cast<std::size_t>(((part / 2 * kUnits + i / kColumns) * 2 + part % 2) * kColumns + i % kColumns);
    };
    for (Index i = 0; i < kUnits * kColumns; ++i)
      alone.grad()[static_cast<std::size_t>(i)] = number(static_cast<Index>(in_all(i)));
    alone.step({.apply = 1, .learning_rate = 1});
    for (Index i = 0; i < kUnits * kColumns; ++i)
      EXPECT_EQ(all.value()[in_all(i)], alone.value()[static_cast<std::size_t>(i)]) << part << ", element " << i;
  }
}

// A wide matrix goes from the left, a tall one from the right: the update of the transpose is the transpose.
TEST(Muon, BothSidesGiveTheSameMatrix) {
  OneWeight wide(4, 9, {{1, 1, 0}}), tall(9, 4, {{1, 1, 0}});
  for (Index i = 0; i < 36; ++i) {
    wide.grad()[static_cast<std::size_t>(i)] = number(i);
    tall.grad()[static_cast<std::size_t>(i % 9 * 4 + i / 9)] = number(i);
  }
  for (OneWeight* w : {&wide, &tall}) w->step({.apply = 1, .learning_rate = 1});
  for (Index i = 0; i < 36; ++i)
    EXPECT_NEAR(wide.value()[static_cast<std::size_t>(i)], tall.value()[static_cast<std::size_t>(i % 9 * 4 + i / 9)],
                1e-12);
}

TEST(Muon, MatricesHaveOneMoment) {
  std::vector<ParamSpec> specs = {OneWeight::spec_of(16, 16, {{1, 1, 0}}),
                                  {TensorSlice::whole("bias", {130}), {130}, Init::zeros, 0, Decay::no}};
  specs[0].first_grad = FirstGrad::overwritten;
  ParamBuffer params(specs, {DType::f64, DType::f64});
  const std::unique_ptr<comm::World> alone = comm::dry_world(0, 1);
  const Optimizer adamw({}, params, alone->all(), alone->all()),
      muon({.type = OptimizerType::muon}, params, alone->all(), alone->all());
  EXPECT_EQ(muon.v().numel(), 256) << "130, up to a multiple of 128";
  EXPECT_EQ(adamw.bytes() - muon.bytes(), 256 * 8);
  ASSERT_EQ(muon.second_moments().size(), 1u);
  EXPECT_EQ(muon.second_moments()[0].in_whole, 256);
  EXPECT_EQ(muon.second_moments()[0].in_own, 0);
}

}  // namespace
}  // namespace megalith::optim
