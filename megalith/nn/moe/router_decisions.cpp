#include "megalith/nn/moe/router_decisions.h"

#include <algorithm>
#include <vector>

#include "megalith/runtime/step_state.h"

namespace megalith::nn {
namespace {

/// Waits for the device.
RoutedTokens tokens_of(Exec& ex, const RoutedRows& rows) {
  StepState state;
  ex.copy(&state, rows.step_state.raw(), sizeof state);
  ex.synchronize();
  return {static_cast<Index>(state.step), rows.moe_layer,
          static_cast<Index>(state.first_sample) * rows.seq_len + rows.first_row};
}

std::vector<std::int32_t> host_buffer(const Tensor& tensor) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(tensor.numel()));
}

}  // namespace

void RouterDecisions::replay(Exec& ex, const RoutedRows& rows, const Tensor& experts, const Tensor& stays) {
  if (use() != Use::replay || ex.recording()) return;
  std::vector<std::int32_t> decided = host_buffer(experts);
  take(tokens_of(ex, rows), decided);
  dispatch_wide(stays.dtype(), "RouterDecisions::replay", [&]<class T>() {
    std::vector<T> on_host;
    for (const std::int32_t expert : decided) on_host.push_back(expert < 0 ? T{0} : T{1});
    ex.copy(stays.raw(), on_host.data(), stays.bytes());
    ex.synchronize();
  });
  for (std::int32_t& expert : decided) expert = std::max(expert, ~expert);
  ex.copy(experts.raw(), decided.data(), experts.bytes());
  ex.synchronize();
}

void RouterDecisions::record(Exec& ex, const RoutedRows& rows, const Tensor& experts, const Tensor& kept) {
  if (use() != Use::record || ex.recording()) return;
  std::vector<std::int32_t> decided = host_buffer(experts), kept_on_host = host_buffer(kept);
  ex.copy(decided.data(), experts.raw(), experts.bytes());
  ex.copy(kept_on_host.data(), kept.raw(), kept.bytes());
  const RoutedTokens tokens = tokens_of(ex, rows);
  for (std::size_t i = 0; i < decided.size(); ++i) {
    if (kept_on_host[i] < 0) decided[i] = ~decided[i];
  }
  take(tokens, decided);
}

RouterDecisions& no_router_decisions() {
  static RouterDecisions none;
  return none;
}

}  // namespace megalith::nn
