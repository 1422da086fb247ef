#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "megalith/base/build.h"
#include "megalith/ops/echo_plan.h"

namespace megalith::nn {

inline constexpr std::array<std::string_view, 2> kEchoBalanceNames = {"greedy", "exact"};

/// Where backward has the weights of clones from: slots of each layer and microbatch in flight keep them, or all layers
/// share slots, and the weights are sent again. Automatic: a run chooses when it begins (train/clone_memory.h); layers
/// keep them.
enum class EchoWeights : std::uint8_t { automatic, keep, redispatch };
inline constexpr std::array<std::string_view, 3> kEchoWeightsNames = {"auto", "keep", "redispatch"};

/// How weights and gradients of clones move: ranks read each other's rows (peer); all slots are summed over the ranks,
/// and gradients of all slots gathered (collective); rows are sent, whose numbers the host knows (host_sized). All give
/// the same bits. Automatic: peer if the group reads rows (Channel::reads_rows), else host_sized.
enum class EchoBackend : std::uint8_t { automatic, peer, collective, host_sized };
inline constexpr std::array<std::string_view, 4> kEchoBackendNames = {"auto", "peer", "collective", "host_sized"};

/// [moe.echo] of a recipe, resolved (ops/echo_plan.h).
struct EchoConfig {
  Index slots = 0;  ///< S, of each rank; 0: no ECHO
  Index min_pairs = 1024;
  ops::EchoBalance balance = ops::EchoBalance::greedy;
  EchoWeights weights = EchoWeights::automatic;
  EchoBackend backend = EchoBackend::automatic;
  bool overlap = true;   ///< transfers overlap with compute
  Index check_plan = 0;  ///< steps between comparisons of the ranks' plans; 0: only debug builds on CPUs, in each

  /// The steps between comparisons of a run on this device; 0: none.
  Index compared_every(Device device) const {
    if (slots == 0) return 0;
    return build::is_debug && (device == Device::cpu || check_plan > 0) ? 1 : check_plan;
  }
};

}  // namespace megalith::nn
