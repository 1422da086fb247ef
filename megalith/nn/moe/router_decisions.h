#pragma once
#include <cstdint>
#include <span>

#include "megalith/runtime/exec.h"

namespace megalith::nn {

/// Consecutive tokens of one MoE layer and step.
struct RoutedTokens {
  Index step = 0;       ///< counted from 0
  Index moe_layer = 0;  ///< among the MoE layers of the model
  Index first = 0;      ///< number of the first token in the step's global batch
};

/// The rows that a router routes at once.
struct RoutedRows {
  Index moe_layer = 0;  ///< among the MoE layers of the model
  Index first_row = 0;  ///< within the microbatch
  Index seq_len = 0;
  Tensor step_state;  ///< Microbatch::step_state
};

/// The hook that routers call in training passes. A derived class records their decisions, or replaces them by those of
/// another run; then the host waits for the device in each MoE layer. The hook itself does nothing.
class RouterDecisions {
 public:
  enum class Use : std::uint8_t { none, record, replay };
  virtual ~RouterDecisions() = default;

  /// Replay: writes the recorded decisions. experts [n, K] i32; stays [n, K] f32 or f64: 0 for a dropped pair, else 1.
  void replay(Exec& ex, const RoutedRows& rows, const Tensor& experts, const Tensor& stays);
  /// Record: reads experts [n, K] i32, and kept [n, K] i32: experts, or -1 for a dropped pair.
  void record(Exec& ex, const RoutedRows& rows, const Tensor& experts, const Tensor& kept);

 private:
  virtual Use use() const { return Use::none; }
  /// experts [tokens, K], token after token: read if they are recorded, written if they are replayed. ~expert if the
  /// pair was dropped.
  virtual void take(const RoutedTokens& /*tokens*/, std::span<std::int32_t> /*experts*/) {}
};

/// The hook of routers whose decisions nobody records or replaces.
RouterDecisions& no_router_decisions();

}  // namespace megalith::nn
