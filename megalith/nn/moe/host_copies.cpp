#include "megalith/nn/moe/host_copies.h"

#include <algorithm>

namespace megalith::nn {

std::string_view name(MoePoint point) {
  switch (point) {
    case MoePoint::before_permutation_1:
      return "before_permutation_1";
    case MoePoint::before_ep_alltoall:
      return "before_ep_alltoall";
    case MoePoint::before_permutation_2:
      return "before_permutation_2";
    case MoePoint::before_finish:
      return "before_finish";
    case MoePoint::no_sync:
      return "no_sync";
  }
  return "?";
}

HostCopies host_copies(const DispatchFacts& facts) {
  if (facts.capacity == ExpertCapacity::pad) return {};
  HostCopies copies;
  copies.issue = facts.preprocess_captured ? MoePoint::before_ep_alltoall : MoePoint::before_permutation_1;
  const bool alone = facts.ep == 1 && facts.etp == 1;
  copies.wait = alone ? MoePoint::before_finish : MoePoint::before_ep_alltoall;
  if (facts.local_experts > 1 && !facts.fuses_permutation)
    copies.wait = std::min(copies.wait, MoePoint::before_permutation_2);
  if (facts.capacity == ExpertCapacity::drop || facts.pads_routing) copies.wait = MoePoint::before_permutation_1;
  return copies;
}

}  // namespace megalith::nn
