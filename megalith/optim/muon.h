#pragma once
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/ops/muon.h"
#include "megalith/optim/optim_config.h"
#include "megalith/params/param_buffer.h"

namespace megalith::optim {

/// The part of a Muon step that takes a matrix as one: its update becomes the nearest matrix with orthogonal rows or
/// columns, by five Newton-Schulz steps X <- a X + (b A + c A^2) X with A = X X^T, or, the same, with A = X^T X from
/// the right. The matrix is the global one. Tensor-parallel ranks hold slices of its rows or of its columns, and A on
/// the other side is a sum over them: each rank computes its slice. Ranks of the reduction group share the work: a
/// weight belongs to one of them, which computes its matrices, and the others get them. Where the optimizer is sharded,
/// they first gather the updates of their shards. q, k and v, gates and ups are matrices of their own, of each expert.
/// Computes in bf16 where layers do, else in the dtype of gradients. Matrices of one shape are a batch, of up to 64 MiB
/// of that dtype: small GEMMs do not fill a GPU. Scratch: four batches of that dtype at most, and one of gradients.
/// Communicates per matrix and tensor-parallel rank: five A and a norm; over the reduction group twice (n-1)/n of the
/// updates.
/// Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
class Muon {
 public:
  /// `data`: the reduction group of `params`; `tp`: over which ParamSpec::slice cuts the matrices (tp, or etp of
  /// experts).
  Muon(const OptimConfig& config, const ParamBuffer& params, comm::Group data, comm::Group tp);
  Muon(const Muon&) = delete;
  Muon& operator=(const Muon&) = delete;

  /// Whether this class updates a parameter.
  static bool takes(const Param& param) { return !param.spec.matrices.empty(); }
  /// params.grads() holds this rank's updates, and then the scaled orthogonal ones. Gradients of other parameters are
  /// undefined afterwards.
  void orthogonalise(Exec& ex) const;

 private:
  /// The product that is summed over `tp`: of rows (X X^T), if each rank has a part of the columns, or of columns.
  enum class Side : std::uint8_t { left, right };
  /// One matrix of a dense weight, or the same one of neighbouring experts.
  struct Matrices {
    const Param* param;
    RowRuns runs;
    Index first, count;   ///< of this rank's experts; else 0, 1
    Index rows, columns;  ///< of this rank's slice of each
    Side side;
    bool is_split;  ///< over tp
    int owner = 0;  ///< in the reduction group; of all matrices of these weights
    double scale;
    /// Whether both can be in a batch.
    bool is_like(const Matrices& other) const {
      return rows == other.rows && columns == other.columns && side == other.side && is_split == other.is_split;
    }
  };
  using Batch = std::vector<const Matrices*>;
  std::vector<Matrices> find_matrices() const;
  Index experts_per_owner(const Param& param) const;
  static Index count_of(const Batch& batch);
  /// run(matrices, their rows in x [S, R, C]: [count R, C]).
  template <class Run>
  static void for_all(const Batch& batch, const Tensor& x, const Run& run);
  void find_owners();
  bool has_matrices(const Bucket& bucket) const;
  /// From shards of updates to whole ones.
  void gather(Exec& ex) const;
  /// From whole matrices, each on its owner and 0 elsewhere, to all ranks, or to their shards.
  void share(Exec& ex) const;
  void find_batches();
  DType dtype() const {
    const Policy& policy = params_.policy();
    return policy.compute == DType::bf16 ? DType::bf16 : policy.master;
  }
  /// The rows of the weights that hold the matrices.
  Tensor weights_of(const Matrices& matrices) const;
  void orthogonalise(Exec& ex, const Batch& batch) const;
  Tensor unit_norms(Exec& ex, const Batch& batch) const;
  void iterate(Exec& ex, const Matrices& first, const Tensor& x) const;

  OptimConfig config_;
  const ParamBuffer& params_;
  comm::Group data_, tp_;
  std::vector<Matrices> matrices_;
  std::vector<Batch> batches_;  ///< of this rank's matrices
};

}  // namespace megalith::optim
