#pragma once
#include <cstdint>
#include <optional>
#include <utility>

#include "megalith/nn/tensor_parallel.h"

namespace megalith::nn {

/// Which rows a rank brings into dispatch, so that a token enters it once.
enum class DispatchRows : std::uint8_t {
  own,         ///< those that it holds outside tensor-parallel regions: no other rank has them
  share,       ///< a share of the rows that all tensor-parallel ranks hold. They gather the results
  replicated,  ///< all rows. Each tensor-parallel rank has its slice of every expert; they sum the results
};

/// How the experts of a stage are spread over its ranks. An expert lives on the etp ranks of one expert-parallel rank,
/// which hold a slice of it each. Source: parallel folding, Liu et al. 2025, arXiv:2504.14960.
class ExpertParallel {
 public:
  ExpertParallel(const TensorParallel& tp, comm::Group ep, comm::Group etp, comm::Group etp_ep);

  DispatchRows rows() const { return rows_; }
  const comm::Group& ep() const { return ep_; }
  const comm::Group& etp() const { return etp_; }
  /// The ranks that exchange rows: ep where rows are replicated, else etp_ep.
  const comm::Group& dispatch() const { return rows_ == DispatchRows::replicated ? ep_ : etp_ep_; }
  /// Where weights and gradients of cloned experts move. Unless rows are replicated it is another group than
  /// dispatch(), so that on GPUs they move beside rows.
  const comm::Group& clones() const { return ep_; }
  /// Whether this rank's rows count in totals over all ranks: those of replicas count once.
  bool counts_rows() const { return rows_ != DispatchRows::replicated || tp_.group().rank() == 0; }
  /// Copies of a row that are sent for each choice: one for each slice that members of dispatch() hold.
  int slices() const { return rows_ == DispatchRows::replicated ? 1 : etp_.size(); }
  /// Places in dispatch() between two neighbours of ep, and of etp.
  int ep_stride() const { return ep_stride_; }
  int etp_stride() const { return etp_stride_; }
  /// Rows of `tokens` that this rank brings into dispatch. Throws ConfigError if shares would not be equal.
  Index rows_of(Index tokens) const;
  /// The first of these among the microbatch's rows.
  Index first_row(Index tokens) const;
  /// The most rows that can arrive, for `rows` of each rank with top_k choices.
  Index max_rows(Index rows, Index top_k, Index num_experts) const;
  /// The placement of parameters that are used for the rows of dispatch: the router's.
  grid::Placement rows_placement() const;
  /// This rank's part of a tensor of the rows outside tensor-parallel regions.
  Tensor own_rows(const Tensor& outside) const;

 private:
  TensorParallel tp_;
  comm::Group ep_, etp_, etp_ep_;
  DispatchRows rows_;
  int ep_stride_ = 1, etp_stride_ = 1;
};

/// The groups that layers compute in.
struct LayerGroups {
  LayerGroups(TensorParallel of_tp)  // NOLINT(google-explicit-constructor): a model without experts needs no more
      : tp(std::move(of_tp)) {}
  LayerGroups(TensorParallel of_tp, ExpertParallel of_experts) : tp(std::move(of_tp)), experts(std::move(of_experts)) {}

  TensorParallel tp;
  std::optional<ExpertParallel> experts;  ///< of models with experts
};

}  // namespace megalith::nn
