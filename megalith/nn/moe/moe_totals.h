#pragma once
#include <cstddef>

#include "megalith/ops/echo_check.h"
#include "megalith/ops/echo_routing.h"

namespace megalith::nn {

enum class EchoTotals : std::uint8_t { none, counted };

/// What the passes of a step add up about its MoE layers: a row for each of them in the model, of which a rank fills in
/// those of its own; and one pair of numbers of all.
struct MoeTotals {
  static constexpr Index kNumbers = 4;
  Tensor counts;  ///< [layers, E + 1] i64: choices of each expert, then dropped pairs
  /// [layers, 4] f64: load loss and z-loss, weighted, times the tokens they stand for; least and greatest expert bias.
  Tensor numbers;
  Tensor echo;  ///< [layers, ops::kEchoTotals] f64, of the plans of clones; undefined: they are not counted
  /// [ops::kPlanDifference] i64, of this rank alone, in evaluations too: the first plans of clones that differ. With
  /// `echo`.
  Tensor plans;
  /// [layers] f64: us for which transfers of clones keep this rank waiting. In memory of its own, as equal steps take
  /// other times; undefined: not measured.
  Tensor exposed;

  Tensor overflow;  ///< [2] i64, of all layers here: ops::LimitRows::overflow

  /// All but `exposed` lie in one run of memory, of which all bits 0 are nothing added yet.
  static MoeTotals in(std::byte* memory, Index layers, Index num_experts, EchoTotals of_echo = EchoTotals::none) {
    if (layers == 0) return {};
    const Index counts = layers * (num_experts + 1) * 8, numbers = layers * kNumbers * 8;
    const auto at = [&](Index bytes) { return memory == nullptr ? nullptr : memory + bytes; };
    MoeTotals totals;
    totals.counts = {memory, {layers, num_experts + 1}, DType::i64};
    totals.numbers = {at(counts), {layers, kNumbers}, DType::f64};
    totals.overflow = {at(counts + numbers), {2}, DType::i64};
    if (of_echo == EchoTotals::none) return totals;
    const Index before_echo = counts + numbers + totals.overflow.bytes();
    totals.echo = {at(before_echo), {layers, ops::kEchoTotals}, DType::f64};
    totals.plans = {at(before_echo + totals.echo.bytes()), {ops::kPlanDifference}, DType::i64};
    return totals;
  }

  Index bytes() const {
    const Index of_echo = echo ? echo.bytes() + plans.bytes() : 0;
    return layers() == 0 ? 0 : counts.bytes() + numbers.bytes() + overflow.bytes() + of_echo;
  }
  Index layers() const { return counts ? counts.dim(0) : 0; }
  Index num_experts() const { return counts.dim(1) - 1; }
  Tensor choices(Index layer) const { return counts.rows(layer, 1).reshaped({counts.dim(1)}).rows(0, num_experts()); }
  Tensor dropped(Index layer) const { return counts.rows(layer, 1).reshaped({counts.dim(1)}).rows(num_experts(), 1); }
  Tensor load_loss(Index layer) const { return numbers.rows(layer, 1).reshaped({kNumbers}).rows(0, 1); }
  Tensor z_loss(Index layer) const { return numbers.rows(layer, 1).reshaped({kNumbers}).rows(1, 1); }
  Tensor of_echo(Index layer) const { return echo.rows(layer, 1).reshaped({ops::kEchoTotals}); }
  Tensor exposed_in(Index layer) const { return exposed ? exposed.rows(layer, 1) : Tensor(); }
  Tensor bias_range(Index layer) const { return numbers.rows(layer, 1).reshaped({kNumbers}).rows(2, 2); }
};

}  // namespace megalith::nn
