#pragma once
#include <vector>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/moe/host_copies.h"
#include "megalith/nn/moe/host_numbers.h"

namespace megalith::nn {

/// For a group of one rank, which holds all experts whole: rows are permuted, and nothing is sent. Rows that experts
/// read in E4M3 are rounded while they are permuted (DispatchSizes::forms). Memory per microbatch in flight: maps. Rows
/// are permuted again for backward. Where the groups' sizes are on the host (`copies`) a pass waits for the device
/// once.
class LocalDispatcher final : public Dispatcher {
 public:
  struct Saved : Dispatcher::Saved {
    Tensor row_of, pair_of;  ///< [n, K], [M] i32
    Tensor table;            ///< [2, E] i32: `groups`
    ops::GroupRows groups;
    HostNumbers on_host;                  ///< table
    std::vector<std::int32_t> constants;  ///< the table of a pass that pads
    ExpertRows rows;                      ///< without groups
    Tensor returned;                      ///< [M, H]
    RowGrads grads;                       ///< to the experts, then from them

    void take_host_memory(Device device) override { on_host.take_memory(device); }
  };
  LocalDispatcher(comm::Group alone, const DispatchSizes& sizes, const HostCopies& copies)
      : alone_(std::move(alone)), sizes_(sizes), copies_(copies) {}
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
  void reach(Exec& ex, MoePoint point, Saved& kept) const;
  /// x [n, H] -> the rows of experts, in these forms.
  ExpertRows gathered(Exec& ex, const Tensor& x, const RowForms& forms, const Saved& kept) const;

  comm::Group alone_;
  DispatchSizes sizes_;
  HostCopies copies_;
};

}  // namespace megalith::nn
