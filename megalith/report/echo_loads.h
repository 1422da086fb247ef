#pragma once
#include <memory>
#include <string>

#include "megalith/io/fs.h"
#include "megalith/report/echo_counts_file.h"
#include "megalith/train/router_trace_file.h"

namespace megalith::apps {

/// A router without training under moe.router_skew = `skew`: a token's logits are normal, with the deviation of
/// initial weights of 0.02 and 2048 features, less skew log(1 + e). The same for the same numbers.
struct SkewedRouter {
  double skew = 0;
  Index tokens = 1;  ///< of a rank
  Index top_k = 1;
};
EchoCounts skewed_counts(const SkewedRouter& router, Index ranks, Index experts);

/// How the ranks of a run share the samples of a step, as runs do: each of `dp` ranks has consecutive samples, and
/// takes `micro_batch` of them at a time. Consecutive ranks share experts.
struct EchoSamples {
  Index dp = 1, micro_batch = 1;
};

/// What `train --router-trace` wrote, as microbatches of groups of `grid.ranks` ranks.
class EchoTrace {
 public:
  /// `dp` must be a multiple of `grid.ranks`. Throws InputError with line and column for a file that is no trace or of
  /// another shape.
  EchoTrace(io::Fs& fs, const std::string& file, const EchoGrid& grid, const EchoSamples& samples);

  const train::RouterTraceShape& shape() const { return trace_->shape(); }
  Index ranks() const { return ranks_; }
  const EchoSamples& samples() const { return samples_; }
  Index first_step() const { return trace_->first_step() + 1; }  ///< counted from 1
  Index last_step() const { return trace_->first_step() + trace_->steps(); }
  /// A step has so many: those of the first group, then those of the next.
  Index microbatches() const { return shape().tokens / (ranks_ * rank_tokens()); }
  /// The number of a layer of the model among its MoE layers; -1: it has no experts, or is none of the model.
  Index moe_layer(Index layer) const;
  /// The number in the model of a MoE layer.
  Index model_layer(Index moe_layer) const;

  /// `step` counts from 1. Pairs that a capacity dropped are counted.
  EchoCounts counts(Index step, Index moe_layer, Index microbatch) const;

 private:
  /// A microbatch has so many on each rank.
  Index rank_tokens() const { return samples_.micro_batch * shape().seq_len; }

  std::unique_ptr<train::RouterTraceFile> trace_;
  Index ranks_;
  EchoSamples samples_;
};

}  // namespace megalith::apps
