#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "megalith/nn/moe/moe_config.h"

namespace megalith::nn {

/// Points in the forward pass of an MoE, in their order. `no_sync`: none.
enum class MoePoint : std::uint8_t {
  before_permutation_1,
  before_ep_alltoall,
  before_permutation_2,
  before_finish,
  no_sync
};
std::string_view name(MoePoint point);

/// The facts that decide the two points of an MoE layer's dispatcher.
struct DispatchFacts {
  ExpertCapacity capacity = ExpertCapacity::none;
  bool pads_routing = false;
  int ep = 1, etp = 1;
  Index local_experts = 1;
  bool fuses_permutation = false;
  bool preprocess_captured = false;  ///< the scope moe_preprocess
};

/// The point where the copy of token counts to the host starts, and the point where the host waits for it.
struct HostCopies {
  std::optional<MoePoint> issue;  ///< none: nothing is copied, because all sizes are constants
  MoePoint wait = MoePoint::no_sync;
  /// The host cannot wait before the copy has started. Such a configuration is refused (rule V8).
  bool legal() const { return !issue || wait >= *issue; }
};
/// The copy starts before the first permutation, or right after it if that is inside a graph, in which the host cannot
/// wait. The host waits at the first point that needs a size.
HostCopies host_copies(const DispatchFacts& facts);

}  // namespace megalith::nn
