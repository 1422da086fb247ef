#include "megalith/nn/moe/clone_transport.h"

#include <numeric>

#include "megalith/base/error.h"
#include "megalith/ops/rows.h"

namespace megalith::nn {
namespace {

/// Each rank reads what it needs. Communication: the rows of clones, once.
class PeerTransport final : public CloneTransport {
 public:
  using CloneTransport::CloneTransport;
  /// On a GPU the rows move in the group's own stream.
  bool starts_take_time(Device device) const override { return device == Device::cpu; }

  void start_weights(Exec& ex, const Tensor& weights, const PlannedClones& clones, const Tensor& slots,
                     CloneTransfer& transfer) const override {
    const ops::CloneLists& lists = clones.lists;
    transfer.message = comm::gather_rows(
        ex, group(), weights,
        {.counts = lists.counts, .sources = lists.sources, .begin = lists.begin, .wants = lists.wants}, slots);
  }
  void finish_weights(Exec& ex, const PlannedClones&, const Tensor&, CloneTransfer& transfer) const override {
    transfer.message.wait(ex);
  }
  void start_grads(Exec& ex, const Tensor& slots, const PlannedClones& clones, const Tensor& grads,
                   CloneTransfer& transfer) const override {
    const ops::CloneLists& lists = clones.lists;
    transfer.message =
        comm::gather_sum_rows(ex, group(), slots, {.begin = lists.sum_begin, .places = lists.places, .weights = {}},
                              grads, comm::Write::accumulate);
  }
  void finish_grads(Exec& ex, const PlannedClones&, const Tensor&, CloneTransfer& transfer) const override {
    transfer.message.wait(ex);
  }
};

/// The same bytes as whole numbers, of which a sum with zeros keeps every bit.
Tensor as_integers(const Tensor& matrix) {
  const Index bytes = matrix.dim(1) * size_of(matrix.dtype());
  if (bytes % size_of(DType::i32) != 0) return {matrix.raw(), {matrix.dim(0), bytes}, DType::u8, matrix.id()};
  return {matrix.raw(), {matrix.dim(0), bytes / size_of(DType::i32)}, DType::i32, matrix.id()};
}

/// Collectives of constant size. Communication: (R - 1) S rows each way. Memory: R S rows.
class CollectiveTransport final : public CloneTransport {
 public:
  using CloneTransport::CloneTransport;

  void start_weights(Exec& ex, const Tensor& weights, const PlannedClones& clones, const Tensor& slots,
                     CloneTransfer& transfer) const override {
    transfer.sent = ex.tensor({clones.lists.image.dim(0), weights.dim(1)}, weights.dtype());
    ops::permute_rows(ex, {.x = weights, .pair_of = clones.lists.image, .rows = transfer.sent});
    transfer.message =
        comm::reduce_scatter(ex, group(), as_integers(transfer.sent), as_integers(slots), comm::Reduce::sum);
  }
  void finish_weights(Exec& ex, const PlannedClones&, const Tensor&, CloneTransfer& transfer) const override {
    transfer.message.wait(ex);
  }
  void start_grads(Exec& ex, const Tensor& slots, const PlannedClones& clones, const Tensor&,
                   CloneTransfer& transfer) const override {
    transfer.received = ex.tensor({clones.lists.slots.dim(0), slots.dim(1)}, slots.dtype());
    transfer.message = comm::all_gather(ex, group(), slots, transfer.received);
  }
  void finish_grads(Exec& ex, const PlannedClones& clones, const Tensor& grads,
                    CloneTransfer& transfer) const override {
    transfer.message.wait(ex);
    ops::add_rows(
        ex, {.rows = transfer.received, .begin = clones.lists.sum_begin, .order = clones.lists.slots, .grads = grads});
  }
};

/// The reference: all-to-alls with counts that the host knows. Communication: the rows of clones, once.
class SentTransport final : public CloneTransport {
 public:
  using CloneTransport::CloneTransport;
  bool needs_host_sizes() const override { return true; }

  void start_weights(Exec& ex, const Tensor& weights, const PlannedClones& clones, const Tensor& slots,
                     CloneTransfer& transfer) const override {
    start(ex, weights, clones.lists.sent, slots.dim(0), {clones.sends, clones.receives}, transfer);
  }
  void finish_weights(Exec& ex, const PlannedClones& clones, const Tensor& slots,
                      CloneTransfer& transfer) const override {
    transfer.message.wait(ex);
    ops::permute_rows(ex, {.x = transfer.received, .pair_of = clones.lists.received, .rows = slots});
  }
  void start_grads(Exec& ex, const Tensor& slots, const PlannedClones& clones, const Tensor&,
                   CloneTransfer& transfer) const override {
    start(ex, slots, clones.lists.returned, clones.lists.arrived.dim(0), {clones.receives, clones.sends}, transfer);
  }
  void finish_grads(Exec& ex, const PlannedClones& clones, const Tensor& grads,
                    CloneTransfer& transfer) const override {
    transfer.message.wait(ex);
    ops::add_rows(
        ex,
        {.rows = transfer.received, .begin = clones.lists.sum_begin, .order = clones.lists.arrived, .grads = grads});
  }

 private:
  struct Counts {
    std::span<const Index> sends, receives;
  };
  /// Sends rows order[0], order[1], ... of `rows`, and receives at most `arrive`.
  void start(Exec& ex, const Tensor& rows, const Tensor& order, Index arrive, const Counts& counts,
             CloneTransfer& transfer) const {
    const auto sum = [](std::span<const Index> each) { return std::accumulate(each.begin(), each.end(), Index{0}); };
    transfer.sent = ex.tensor({order.dim(0), rows.dim(1)}, rows.dtype());
    transfer.received = ex.tensor({arrive, rows.dim(1)}, rows.dtype());
    ops::permute_rows(ex, {.x = rows, .pair_of = order, .rows = transfer.sent});
    transfer.message = comm::all_to_all(ex, group(), transfer.sent.rows(0, sum(counts.sends)), counts.sends,
                                        transfer.received.rows(0, sum(counts.receives)), counts.receives);
  }
};

}  // namespace

std::unique_ptr<CloneTransport> make_clone_transport(EchoBackend backend, const comm::Group& group) {
  switch (backend) {
    case EchoBackend::peer:
      return std::make_unique<PeerTransport>(group);
    case EchoBackend::collective:
      return std::make_unique<CollectiveTransport>(group);
    case EchoBackend::host_sized:
      return std::make_unique<SentTransport>(group);
    case EchoBackend::automatic:
      break;
  }
  throw InternalError("[make_clone_transport] backend = auto: must be chosen");
}

}  // namespace megalith::nn
