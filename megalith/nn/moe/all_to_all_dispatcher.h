#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/host_copies.h"
#include "megalith/nn/moe/host_numbers.h"

namespace megalith::nn {

/// The rows that counts of a group send from a rank and bring to it, and the most of each.
struct CountedRows {
  Index sent = 0, pairs = 0;
  Index arrived = 0, room = 0;
};
/// Throws CollectiveError for counts that no routing gives. GPUs clamp such counts, so nothing is out of bounds before
/// the host sees them.
void check_counts(std::string_view group, std::span<const std::int32_t> counts, const CountedRows& rows);

/// The reference: all-to-alls with counts that the host knows. Rows are permuted by destination, sent, and regrouped by
/// expert. A row is sent once for each of its experts, to each slice of that expert where members of the group hold
/// several; the source sums what comes back.
/// Communication, per pass: an all-gather of counts (4 bytes times destinations times ranks) and two all-to-alls of at
/// most n K P rows of H, P slices; backward has two more, and two of one number a row: the weights of rows, and their
/// gradients.
/// Memory per microbatch in flight: the rows that arrive, at their worst case (ExpertParallel::max_rows), and maps.
/// With BackwardRows::fetched backward has one more all-to-all of H, and rows are not kept.
class AllToAllDispatcher final : public Dispatcher {
 public:
  struct Saved : Dispatcher::Saved {
    Tensor destinations;                    ///< [n, K P] i32: (rank, local expert)
    Tensor counts, offsets;                 ///< [V] i32, of this rank's pairs by destination
    Tensor all_counts;                      ///< [ranks, V] i32
    HostNumbers on_host;                    ///< all_counts
    Tensor row_of, pair_of;                 ///< [n, K P], [S] i32: pairs and the rows that are sent
    Tensor regrouped, arrived_at;           ///< [A, 1], [M] i32: rows as they arrive, and by expert
    Tensor table;                           ///< [2, L] i32: `groups`
    ops::GroupRows groups;                  ///< of the experts here
    std::vector<std::int32_t> host_groups;  ///< [2, L]
    std::vector<Index> sends, receives;     ///< rows to and from each rank
    Tensor sent, rows, returned;            ///< [S, H], [M, H], [S, H]
    RowGrads grads;                         ///< to the experts, then from them: where rows are sent from [S]
    Index padded = 0;                       ///< rows of every destination; 0: as many as there are

    void take_host_memory(Device device) override { on_host.take_memory(device); }
  };
  /// `copies`: where counts are copied to the host, in passes that do not pad.
  AllToAllDispatcher(const ExpertParallel& experts, const DispatchSizes& sizes, const HostCopies& copies);
  std::unique_ptr<Dispatcher::Saved> make_saved() const override;

  void preprocess(Exec& ex, const RoutedPairs& routed, Dispatcher::Saved& saved) const override;
  void permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const override;
  /// When it returns the host knows all sizes.
  InFlight dispatch(Exec& ex, Dispatcher::Saved& saved, LaterRows& later) const override;
  ExpertRows arrived(Exec& ex, Dispatcher::Saved& saved) const override;
  void return_rows(Exec& ex, const Tensor& rows, Dispatcher::Saved& saved) const override;
  void combine(Exec& ex, const Tensor& weights, const Tensor& y, Dispatcher::Saved& saved) const override;
  void combine_backward(Exec& ex, const Tensor& dy, const Tensor& weights, Dispatcher::Saved& saved) const override;
  RowGrads return_rows_backward(Exec& ex, Dispatcher::Saved& saved, LaterRows& later) const override;
  ExpertRows dispatched(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const override;
  InFlight dispatch_backward(Exec& ex, const RowGrads& rows, const SourceGrads& sources,
                             Dispatcher::Saved& saved) const override;
  void permute_backward(Exec& ex, const SourceGrads& sources, Dispatcher::Saved& saved) const override;

 private:
  /// Rows from several sources to one expert arrive as its group, unless the group has to begin at a multiple.
  bool regroups() const { return ranks_.local_experts > 1 || sizes_.alignment > 1; }
  /// Whether destinations differ from experts.
  bool places() const;
  Index choices() const { return sizes_.top_k * ranks_.slices; }
  Index num_destinations() const { return experts_.dispatch().size() * ranks_.local_experts; }
  Index rows_to_send(Index rows, const Saved& kept) const;
  Index rows_to_receive(Index rows, const Saved& kept) const;
  void group_rows(Exec& ex, Index arrive, Saved& kept) const;
  /// The pass is at a point where the copy of all_counts to the host may start, and the host may wait for it.
  void reach(Exec& ex, MoePoint point, Saved& kept) const;
  void set_padded_sizes(Saved& kept) const;
  void set_sizes(std::span<const std::int32_t> all_counts, Saved& kept) const;
  /// While a pass is recorded: counts that fit the planned tensors.
  void assume_sizes(Index sent, Index arrived, Saved& kept) const;
  /// Starts to send rows [S, H]. Returns them as they arrive [A, H].
  Tensor send(Exec& ex, const Tensor& sent, const Saved& kept, InFlight& in_flight) const;
  /// Those by expert [M, H].
  Tensor by_expert(Exec& ex, const Tensor& received, const Saved& kept) const;
  /// Both; and back.
  Tensor to_experts(Exec& ex, const Tensor& sent, const Saved& kept) const;
  Tensor to_sources(Exec& ex, const Tensor& rows, const Saved& kept, InFlight& in_flight) const;

  ExpertParallel experts_;
  DispatchSizes sizes_;
  HostCopies copies_;
  ops::ExpertRanks ranks_;
};

}  // namespace megalith::nn
