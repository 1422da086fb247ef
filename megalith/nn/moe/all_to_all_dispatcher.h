#pragma once
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/host_copies.h"
#include "megalith/ops/expert_choices.h"
#include "megalith/ops/rows.h"

namespace megalith::nn {

/// The reference: all-to-alls with counts that the host knows. Rows are permuted by destination, sent, and regrouped by
/// expert. A row is sent once for each of its experts, to each slice of that expert where members of the group hold
/// several; the source sums what comes back, so the weights of choices never travel.
/// Communication, per pass: an all-gather of counts (8 bytes times destinations times ranks) and two all-to-alls of at
/// most n K P rows of H, P slices; backward has two more. A group of one rank sends nothing.
/// Memory per microbatch in flight: the rows that arrive and what they return, at their worst case
/// (ExpertParallel::max_rows), and maps.
class AllToAllDispatcher final : public Dispatcher {
 public:
  struct Saved : Dispatcher::Saved {
    Tensor destinations;                 ///< [n, K P] i32: (rank, local expert)
    Tensor counts, offsets;              ///< [V] i64, of this rank's pairs by destination
    Tensor all_counts;                   ///< [ranks, V] i64
    Tensor row_of, pair_of;              ///< [n, K P], [S] i32: pairs and the rows that are sent
    Tensor regrouped, arrived_at;        ///< [M, 1], [M] i32: rows as they arrive, and by expert
    Tensor sent, d_sent;                 ///< [S, H]
    Tensor returned, d_returned;         ///< [S, H]
    Index host_bytes = 0;                ///< of all_counts
    Buffer host;                         ///< all_counts
    Event copied;                        ///< to `host`
    std::vector<Index> sends, receives;  ///< rows to and from each rank
    std::vector<Index> sizes;            ///< rows of each expert here
    Index padded = 0;                    ///< rows of every destination; 0: as many as there are

    void take_host_memory(Device device) override {
      host = Buffer(host_bytes, device, Side::host);
      copied = Event(device);
    }
  };
  /// `copies`: where counts are copied to the host, in passes that do not pad.
  AllToAllDispatcher(const ExpertParallel& experts, const DispatchSizes& sizes, const HostCopies& copies);
  std::unique_ptr<Dispatcher::Saved> make_saved() const override;

  void preprocess(Exec& ex, const Tensor& experts, Mode mode, Dispatcher::Saved& saved) const override;
  void permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const override;
  ExpertRows dispatch(Exec& ex, Dispatcher::Saved& saved) const override;
  void return_rows(Exec& ex, const Tensor& rows, Dispatcher::Saved& saved) const override;
  void combine(Exec& ex, const Tensor& weights, const Tensor& y, Dispatcher::Saved& saved) const override;
  void combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights, const Tensor& d_weights,
                        Dispatcher::Saved& saved) const override;
  ExpertRows return_rows_backward(Exec& ex, Dispatcher::Saved& saved) const override;
  void dispatch_backward(Exec& ex, const Tensor& rows, Dispatcher::Saved& saved) const override;
  void permute_backward(Exec& ex, const Tensor& dx, Dispatcher::Saved& saved) const override;

 private:
  bool is_alone() const { return experts_.dispatch().size() == 1; }
  bool regroups() const { return !is_alone() && ranks_.local_experts > 1; }
  /// Whether destinations differ from experts.
  bool places() const;
  Index choices() const { return sizes_.top_k * ranks_.slices; }
  Index num_destinations() const { return experts_.dispatch().size() * ranks_.local_experts; }
  Index rows_to_send(Index rows, const Saved& kept) const;
  Index rows_to_receive(Index rows, const Saved& kept) const;
  void exchange_counts(Exec& ex, Saved& kept) const;
  /// The pass is at a point where the copy of all_counts to the host may start, and the host may wait for it.
  void reach(Exec& ex, MoePoint point, Saved& kept) const;
  void copy_counts(Exec& ex, Saved& kept) const;
  /// The one place where a pass waits for the device.
  void await_counts(Saved& kept) const;
  void set_padded_sizes(Saved& kept) const;
  void set_sizes(std::span<const std::int64_t> all_counts, Saved& kept) const;
  /// While a pass is recorded: counts that fit the planned tensors.
  void assume_sizes(Index sent, Index arrived, Saved& kept) const;
  ops::UnusedRows unused(const Saved& kept) const {
    return kept.padded > 0 ? ops::UnusedRows::zero : ops::UnusedRows::leave;
  }
  /// A choice's weight for each of its slices [n, K P].
  Tensor of_slices(Exec& ex, const Tensor& weights) const;
  /// Rows as they are sent [S, H] -> by expert [M, H], and back.
  Tensor to_experts(Exec& ex, const Tensor& sent, const Saved& kept) const;
  Tensor to_sources(Exec& ex, const Tensor& rows, const Saved& kept) const;

  ExpertParallel experts_;
  DispatchSizes sizes_;
  HostCopies copies_;
  ops::ExpertRanks ranks_;
};

}  // namespace megalith::nn
