#pragma once
#include <vector>

#include "megalith/nn/moe/experts.h"
#include "megalith/nn/moe/host_numbers.h"
#include "megalith/ops/row_rounds.h"

namespace megalith::nn {

/// An MoE layer's exchange between ranks that read each other's memory, in rounds: as PeerDispatcher, for the rows of
/// some experts of every rank at a time, in buffers that are too small for all rows. Every expert is in one round, with
/// all of its rows, and a source keeps the result of each pair until it has all of them. So the bits are those of one
/// exchange with room for all rows. Backward fetches rows once more and repeats the first GEMM, round by round.
/// With ECHO (moe/echo.h) a rank's slots are experts here, each in one round; weights of clones are here before the
/// first round, and their gradients go home after the last. The number of rounds is data, so a pass in rounds is no
/// part of a graph: its ops run in a loop (Exec::go_back), and the host reads how
/// many pairs each expert has.
/// Communication: of PeerDispatcher, and in backward another gather_rows of H; each once a round. Memory: the choices
/// of all, and for a moment the budget's rows, and n K P rows of results.
class ExpertRounds {
 public:
  struct Saved {
    Tensor all;                          ///< [R, n, K] i32: the choices of all ranks
    Tensor row_of;                       ///< [n, K P] i32: pairs in `results`; -1: none
    std::vector<std::int32_t> round_of;  ///< by expert
    HostNumbers counts_on_host;          ///< [R, E]: the pairs of each rank for each expert
    HostNumbers table_on_host;           ///< table, for loops over groups on a GPU
    std::int32_t count = 1;              ///< rounds
    ops::PlanExchange plan;              ///< of the round
    Tensor table;                        ///< [2, L] i32: the groups of `plan`
    ops::PullTables returns;             ///< results of the round that come here
    Tensor results;                      ///< [n K P, H]
    RowGrads grads;                      ///< [n K P, ...]

    void take_host_memory(Device device) {
      if (round_of.empty()) return;  // no passes in rounds
      counts_on_host.take_memory(device);
      table_on_host.take_memory(device);
    }
  };
  ExpertRounds(const ExpertParallel& experts, const DispatchSizes& sizes);
  Saved make_saved() const;

  /// From every row's experts: the rounds.
  void preprocess(Exec& ex, const RoutedPairs& routed, Saved& saved) const;
  /// Results of the rows x [n, H].
  void forward(Exec& ex, const Tensor& x, const Experts& experts, Experts::Saved& of_experts, Saved& saved) const;
  /// As Dispatcher::combine().
  void combine(Exec& ex, const Tensor& weights, const Tensor& y, Saved& saved) const;
  /// dy [n, H] and weights [n, K] of combine(). Adds to the gradients of the experts' weights.
  struct Backward {
    Tensor x, dy, weights;
    ops::Write weight_grads = ops::Write::accumulate;
  };
  void backward(Exec& ex, const Backward& in, const Experts& experts, Experts::Saved& of_experts, Saved& saved) const;
  /// As Dispatcher::permute_backward().
  void sum_grads(Exec& ex, const Tensor& dx, const Tensor& d_weights, Saved& saved) const;

 private:
  Index slices() const { return ranks_.slices; }
  /// Calls body(range) for each round, with the round's lists and its experts here.
  template <class Body>
  void for_rounds(Exec& ex, Saved& saved, Body&& body) const;
  void start_round(Exec& ex, std::int32_t round, Saved& saved) const;
  ExpertRange range_of(std::int32_t round, const Saved& saved) const;
  Tensor pulled(Exec& ex, const Tensor& of_sources, const ops::PullTables& pulls) const;
  /// What experts here have made of the round's rows, to where these came from.
  void give_back(Exec& ex, const Tensor& of_experts, const Tensor& of_pairs, const Saved& saved) const;

  ExpertParallel experts_;
  DispatchSizes sizes_;
  ops::ExpertRanks ranks_;
};

}  // namespace megalith::nn
