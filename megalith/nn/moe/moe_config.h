#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/nn/moe/echo_config.h"
#include "megalith/ops/capacity.h"
#include "megalith/ops/router.h"

namespace megalith::nn {

/// The tokens over which a load loss is computed: those of a microbatch, of a sequence, or with the counts of the whole
/// step before. Only the last two do not depend on train.micro_batch.
enum class AuxScope : std::uint8_t { microbatch, sequence, global };
inline constexpr std::array<std::string_view, 3> kAuxScopeNames = {"microbatch", "sequence", "global"};

/// What an expert takes: all rows that chose it (dropless); up to its capacity; or always its capacity, filled up with
/// zeros, so that all sizes are constants.
enum class ExpertCapacity : std::uint8_t { none, drop, pad };
inline constexpr std::array<std::string_view, 3> kExpertCapacityNames = {"none", "drop", "pad"};

/// How the GEMMs of experts run: one for each expert, or one kernel for all that reads their sizes on a Hopper GPU.
/// Automatic: the kernel where it can run.
enum class ExpertGemm : std::uint8_t { automatic, grouped, loop };
inline constexpr std::array<std::string_view, 3> kExpertGemmNames = {"auto", "grouped", "loop"};

/// How rows come to the ranks of their experts: read by these ranks where they are, or sent with counts that the host
/// knows. Automatic: read, if the group reads rows (Channel::reads_rows) and is no larger than kMaxPeers.
enum class ExpertDispatcher : std::uint8_t { automatic, peer, all_to_all };
inline constexpr std::array<std::string_view, 3> kExpertDispatcherNames = {"auto", "peer", "all_to_all"};
/// The most ranks that read each other's rows.
inline constexpr int kMaxPeers = 8;

/// What a step does in which more rows would arrive at a rank than its budget: it is run again, in rounds; the run
/// ends; or pairs of token and expert are dropped and counted.
enum class RowOverflow : std::uint8_t { rerun, abort, drop };
inline constexpr std::array<std::string_view, 3> kRowOverflowNames = {"rerun", "abort", "drop"};

/// The rows of experts on a rank over its even share, in thousandths; 0: those of the worst case.
struct RankCapacity {
  Index thousandths = 0;
  bool is_worst_case() const { return thousandths == 0; }
  std::string text() const;  ///< "1.25", "worst"
  /// Nothing for what is neither "worst" nor a number of thousandths from 0.001 to 1000000.
  static std::optional<RankCapacity> of(const std::string& text);
  bool operator==(const RankCapacity&) const = default;
};

/// [moe] of a recipe, resolved. Symbols: E experts, K choices of a token, F width of an expert.
struct MoeConfig {
  Index num_experts = 0;  ///< 0: a dense model
  Index top_k = 2, ffn_hidden_size = 0;
  std::string pattern = "m";  ///< repeats over the layers: d dense, m mixture of experts
  ops::RouterScore score = ops::RouterScore::softmax;
  bool score_before_top_k = true, normalize_top_k = false;
  double scale = 1;
  Index num_groups = 1, group_top_k = 1;
  double aux_loss = 0;
  AuxScope aux_scope = AuxScope::microbatch;
  double z_loss = 0, expert_bias_rate = 0;
  Index shared_ffn_hidden_size = 0;  ///< 0: no shared experts
  bool shared_gate = false;
  ExpertCapacity capacity = ExpertCapacity::none;
  double capacity_factor = 0;
  Index capacity_run = 0;  ///< 0: seq_len
  ops::DropBy drop_by = ops::DropBy::probability;
  ExpertGemm gemm = ExpertGemm::automatic;
  ExpertDispatcher dispatcher = ExpertDispatcher::automatic;
  RankCapacity rank_capacity_factor = {};  ///< of ranks that read each other's rows, in training
  RowOverflow overflow = RowOverflow::rerun;
  bool overlap = false;  ///< rows of some experts of a rank travel beside the GEMMs of others, where ranks read rows
  EchoConfig echo = {};
  std::string replay = {};     ///< a file of decisions that routers repeat; empty: none
  bool force_balance = false;  ///< the same number of tokens to every expert, whatever their scores
  double router_skew = 0;      ///< ops::skew_logits(), for measurements; 0: none

  bool has_experts() const { return num_experts > 0; }
  bool is_moe_layer(Index layer) const {
    return has_experts() && pattern[static_cast<std::size_t>(layer) % pattern.size()] == 'm';
  }
  bool has_capacity() const { return capacity != ExpertCapacity::none; }
  bool has_expert_bias() const { return expert_bias_rate > 0; }
  /// Whether the counts of a step are kept for the load loss of the next.
  bool keeps_shares() const { return aux_loss > 0 && aux_scope == AuxScope::global; }
  /// Pairs of a run of `run` tokens that an expert takes at most.
  Index capacity_of(Index run) const;
  ops::RouterRules rules() const;
};

}  // namespace megalith::nn
