#pragma once
#include <memory>
#include <span>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/moe/echo_config.h"
#include "megalith/ops/echo_routing.h"

namespace megalith::nn {

/// The clones of a plan, seen from one rank.
struct PlannedClones {
  ops::CloneLists lists;
  /// Rows of weights that go to each rank and come from it, where the host knows. Those of gradients go the other way.
  std::vector<Index> sends, receives;
};

/// A message and what it needs, until it is finished.
struct CloneTransfer {
  Tensor sent, received;
  comm::Pending message;
};

/// Moves rows between experts and slots of the ranks of a group: weights [L, W] of experts to slots [S, W], and
/// gradients of slots to gradients [L, W] of experts, to which they are added in ascending order of slots. Slots
/// without a clone are not read. Source: Megatron-LM's ECHO (its issue 2368).
class CloneTransport {
 public:
  explicit CloneTransport(comm::Group group) : group_(std::move(group)) {}
  virtual ~CloneTransport() = default;
  /// Whether the host must know PlannedClones::sends and receives.
  virtual bool needs_host_sizes() const { return false; }
  /// Whether the start of a transfer takes the caller's stream time.
  virtual bool starts_take_time(Device) const { return true; }

  virtual void start_weights(Exec& ex, const Tensor& weights, const PlannedClones& clones, const Tensor& slots,
                             CloneTransfer& transfer) const = 0;
  /// When it returns, the slots hold the weights.
  virtual void finish_weights(Exec& ex, const PlannedClones& clones, const Tensor& slots,
                              CloneTransfer& transfer) const = 0;
  virtual void start_grads(Exec& ex, const Tensor& slots, const PlannedClones& clones, const Tensor& grads,
                           CloneTransfer& transfer) const = 0;
  virtual void finish_grads(Exec& ex, const PlannedClones& clones, const Tensor& grads,
                            CloneTransfer& transfer) const = 0;

 protected:
  const comm::Group& group() const { return group_; }

 private:
  comm::Group group_;
};

/// Not EchoBackend::automatic.
std::unique_ptr<CloneTransport> make_clone_transport(EchoBackend backend, const comm::Group& group);

}  // namespace megalith::nn
