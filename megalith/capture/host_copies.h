#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "megalith/capture/scopes.h"

namespace megalith::capture {

/// Places in the forward pass of an MoE, in their order. `no_sync`: nowhere.
enum class MoePoint : std::uint8_t {
  before_permutation_1,
  before_ep_alltoall,
  before_permutation_2,
  before_finish,
  no_sync
};
std::string_view name(MoePoint point);

/// What the two points of an MoE layer's dispatcher follow from.
struct DispatchFacts {
  Capacity capacity = Capacity::dropless;
  bool pads_routing = false;
  int ep = 1, etp = 1;
  Index local_experts = 1;
  bool fuses_permutation = false;
  bool preprocess_captured = false;  ///< the scope moe_preprocess
};

/// Where the counts of tokens leave for the host, and where the host waits for them.
struct HostCopies {
  std::optional<MoePoint> issue;  ///< none: nothing is copied, all sizes being constants
  MoePoint wait = MoePoint::no_sync;
  /// The host cannot wait before the copy has been issued: then the configuration is refused (rule V8).
  bool legal() const { return !issue || wait >= *issue; }
};
/// The copy is issued before the first permutation, or right behind it where that lies inside a graph, in which the
/// host may not wait. The host waits at the first place that needs a size.
HostCopies host_copies(const DispatchFacts& facts);

}  // namespace megalith::capture
