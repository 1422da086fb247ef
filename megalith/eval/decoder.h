#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "megalith/comm/mesh.h"
#include "megalith/eval/fill_params.h"
#include "megalith/grid/parallel_config.h"
#include "megalith/model/chunk_memory.h"
#include "megalith/model/expert_counts.h"

namespace megalith::eval {

/// How steps run: their ops one by one, or from a graph that warm_up() captures. On a GPU a graph spares the host some
/// hundred launches a token.
enum class Steps : std::uint8_t { eager, from_graph };
/// From a graph on GPUs, unless the host reads in every step how many tokens experts get (model::host_counts).
Steps steps_for(const model::ModelConfig& model, const model::ExpertSetting& setting);

/// What slots and capacity must be multiples of: tp where its ranks take a share of the rows to experts (etp != tp),
/// else 1.
Index rows_step(const model::ModelConfig& model, const grid::ResolvedSizes& grid);

/// What a Decoder is made for.
struct DecoderConfig {
  model::ModelConfig model;
  DType dtype = DType::f32;  ///< of parameters, activations and the cache
  Device device = Device::cpu;
  Index slots = 1;     ///< sequences that go on at once
  Index capacity = 0;  ///< tokens that a slot holds, 1 to model.seq_len; both are multiples of rows_step()
  Steps steps = Steps::eager;
  std::vector<Index> lengths = {};  ///< of the windows that start() will get, each 1 to capacity; empty: any
};

/// The owner of the caches in ledgers.
inline constexpr const char* kCacheOwner = "key/value cache";

/// One rank's share of a GPT that continues texts: values only, and for each layer the keys and values of the tokens so
/// far, of this rank's kv heads. A sequence lies in one of several slots. Its first tokens are one pass; then each step
/// computes one new token of every slot, and reads the parameters and the caches once.
///
/// The ranks of a model copy (tp x pp) make the same calls in the same order; warm_up() is a call of the whole world.
/// Where copies share experts (copies_meet()) every pass is one of the whole world: all copies have as many slots and
/// the same lengths, step at once, and start windows of as many tokens at once.
/// Stages share out the layers as evenly as it goes and pass the stream on; the logits stand on all tensor-parallel
/// ranks of the last one. Logits of a slot do not depend on the other slots, bit for bit where the CPU computes and
/// there are at most 32, or in f64 (ops/cpu/matmul.cpp). Communication of a step: that of the layers' forward pass, a
/// message of [slots, H] to the next stage, a gather of the logits over tp, and one id for each slot.
class Decoder {
 public:
  /// Takes no memory. Throws ConfigError unless model, tp and pp fit, InternalError for slots, capacity or lengths, and
  /// for steps from a graph where the host reads counts of experts.
  Decoder(const DecoderConfig& config, comm::World& world, const comm::Mesh& mesh);
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const DecoderConfig& config() const { return config_; }
  /// By owner, what allocate() takes: parameters, cache, scratch, inputs and, where there are, rotations and messages.
  BytesByOwner planned_bytes() const;
  /// Parameters are zeros then. Throws IoError where a host has not so much.
  void allocate();
  /// By owner, what was taken so far.
  const BytesByOwner& taken_bytes() const { return ledger_.by_owner(); }
  ParamSet& params() { return memory_.params(); }
  /// As eval::fill_params(). Call it after allocate().
  void fill_params(DType stored, const ReadValues& read);

  /// Before the first text, and by all ranks of the world at once. On a GPU: loads and builds what steps and windows
  /// need. Captures the graph of a step. Slots hold no tokens that count then.
  void warm_up();

  comm::World& world() const { return world_; }
  bool has_copies() const { return mesh_.dp.size() > 1; }
  /// Whether the copies of the model compute every pass together: ranks of one copy hold experts of another.
  bool copies_meet() const;
  /// Whether this rank has logits: those of the last stage.
  bool has_logits() const { return mesh_.last_stage(); }
  /// From here on the slot holds these tokens and no others. Their number is one of config().lengths, or less than one
  /// of them by less than the step to which lengths are rounded up (start_tokens). Returns the logits [v] after the
  /// last, valid until the next call; empty unless has_logits(). `longest`: the tokens of the longest window that the
  /// copies start at once, where they meet.
  std::span<const double> start(Index slot, std::span<const std::int32_t> tokens, Index longest = 0);
  /// The part of a copy without a window in a pass in which others start windows, the longest of `longest` tokens.
  void start_of_others(Index longest);
  /// Each slot goes on with tokens[slot] at positions[slot], which is the number of tokens that it holds. A slot that
  /// is not in use takes any token at position 0. Returns the logits [slots, v], as start().
  std::span<const double> step(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions);
  /// `ids` [slots] of the last stage on all of them.
  void share_ids(std::span<std::int32_t> ids);

 private:
  using Pass = model::Pass;
  const model::Chunk& chunk() const { return memory_.chunk(0); }
  /// The tokens of the pass that reads so many: one of few numbers, each of which has plans of its own, in this memory
  /// and in cuDNN.
  Index start_tokens(Index length) const;
  Pass start_pass(Index length) const { return {.batch = 1, .seq_len = start_tokens(length)}; }
  Pass step_pass() const { return {.batch = config_.slots, .seq_len = 1, .past = nn::Past::cached}; }
  Index max_tokens() const;
  /// start_tokens() of all windows.
  std::set<Index> classes() const;
  /// Sequences that a cache holds: one more than slots where this copy takes part in passes of others.
  Index cache_rows() const { return config_.slots + (copies_meet() ? 1 : 0); }
  std::span<const double> start_in(Index row, std::span<const std::int32_t> tokens, Index longest);
  /// Views of what was taken; without addresses before.
  void make_views();
  /// Passes with `saved` then see part_of(cache) of every cache.
  template <class PartOf>
  void give_caches(model::Chunk::Saved& saved, PartOf&& part_of) const {
    auto next = caches_.begin();
    chunk().take_caches([&](Index, Index) { return part_of(*next++); }, saved);
  }
  void take_caches();
  void plan(const Pass& pass);
  void put_inputs(std::span<const std::int32_t> tokens, std::span<const std::int32_t> positions);
  /// The pass's ops, run or recorded: this rank's part of the logits after some rows, of all tensor-parallel ranks.
  Tensor compute(Exec& ex, const Pass& pass, model::Chunk::Rows rows, model::Chunk::Saved& saved) const;
  Tensor run_planned(const Pass& pass, model::Chunk::Rows rows, model::Chunk::Saved& saved);
  /// Captures a step. A step before it has loaded the kernels and communicators.
  void capture_step();
  std::span<const double> run(const Pass& pass, model::Chunk::Rows rows, model::Chunk::Saved& saved);
  void read_logits(const Tensor& all, Index count);
  bool receives() const { return !mesh_.first_stage(); }
  bool sends() const { return !mesh_.last_stage(); }

  DecoderConfig config_;
  comm::World& world_;
  comm::Mesh mesh_;
  model::ChunkMemory memory_;
  Exec ex_;
  MemoryLedger ledger_;
  std::vector<nn::KvCache> caches_;  // [cache_rows(), G/tp, C, D] of each attention sublayer
  model::Chunk::Saved all_slots_;
  std::vector<model::Chunk::Saved> one_slot_;
  Buffer inputs_, messages_, cache_memory_;
  Tensor tokens_, positions_, ids_, input_, output_;
  std::vector<std::int32_t> host_inputs_;  // tokens, then positions
  Buffer staging_;                         // for logits that come from a GPU
  std::vector<double> logits_;
  Graph step_graph_;
  Tensor step_logits_;                           // that it writes
  std::optional<comm::WatchedReplays> replays_;  // last: it ends before the memory that they access
};

}  // namespace megalith::eval
