#pragma once
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/host_copies.h"
#include "megalith/nn/moe/host_numbers.h"
#include "megalith/ops/row_exchange.h"

namespace megalith::nn {

/// Between ranks that read each other's memory. Every rank gathers the choices of all and computes by itself where
/// every row goes, so no host waits for counts; for a loop of GEMMs on a GPU it waits for the groups here (`copies`).
/// Rows of experts are read from their sources straight to their places, and a source sums the results where they are:
/// nothing is permuted between communication and GEMMs. A row crosses a link once, however many experts of a rank it
/// goes to. Gives the bits of AllToAllDispatcher.
/// Communication, per pass: an all-gather of choices (4 n K bytes of each rank), a gather_rows of at most R n rows of
/// H, and a gather_sum_rows of n K P rows. Backward has the same two, and two of one number for each pair. Memory per
/// microbatch in flight: the rows that arrive, as many as the ranks' budget (RankCapacity), and lists. With
/// BackwardRows::fetched backward has one more gather_rows of H, and rows are not kept. With
/// DispatchSizes::first_groups rows come by two gather_rows, and each row still crosses a link once. Source: Hybrid-EP
/// of Megatron-LM, which computes static offsets from gathered routing maps.
class PeerDispatcher final : public Dispatcher {
 public:
  struct Saved : Dispatcher::Saved {
    ops::PlanExchange plan;               ///< experts: valid in preprocess() only
    Tensor table;                         ///< [2, L] i32: the groups of `plan`
    HostNumbers on_host;                  ///< table
    std::vector<std::int32_t> constants;  ///< the table of a pass that pads
    Tensor x;                             ///< [n, H], of permute()
    Tensor rows, results;                 ///< [M, H]: of the experts here
    Tensor dy, weights;                   ///< [n, H], [n, K]: of combine_backward()

    void take_host_memory(Device device) override { on_host.take_memory(device); }
  };
  PeerDispatcher(const ExpertParallel& experts, const DispatchSizes& sizes, const HostCopies& copies);
  std::unique_ptr<Dispatcher::Saved> make_saved() const override;

  void preprocess(Exec& ex, const RoutedPairs& routed, Dispatcher::Saved& saved) const override;
  void permute(Exec& ex, const Tensor& x, Dispatcher::Saved& saved) const override;
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
  Index slices() const { return ranks_.slices; }
  /// As LocalDispatcher's.
  void reach(Exec& ex, MoePoint point, Saved& kept) const;
  /// Takes away the pairs that have no room at their experts' ranks, from the choices of all.
  void limit_rows(Exec& ex, const RoutedPairs& routed, const ops::PlanExchange& plan) const;
  /// Rows of the experts here [M, W], but for those of later groups.
  struct ComingRows {
    Tensor rows;
    InFlight in_flight = {};  ///< wait before the rows are used
  };
  /// Starts to bring `of_sources` [N, W] of all ranks to the rows of the experts here.
  ComingRows pull_rows(Exec& ex, const Tensor& of_sources, const ops::PlanExchange& plan, LaterRows& later) const;
  /// Sums of `of_experts` [M, W] of all ranks at this rank's places.
  comm::Pending sum_places(Exec& ex, const Tensor& of_experts, const comm::RowSums& sums, const Tensor& out) const;

  ExpertParallel experts_;
  DispatchSizes sizes_;
  HostCopies copies_;
  ops::ExpertRanks ranks_;
};

}  // namespace megalith::nn
