#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "megalith/runtime/step_state.h"
#include "megalith/tensor/memory.h"

namespace megalith::model {

/// A target without a loss.
inline constexpr std::int32_t kNoTarget = -1;

/// The inputs of B samples of S tokens, by name, on the host, sample after sample.
struct Batch {
  std::span<std::int32_t> tokens;   ///< [B * S] ids
  std::span<std::int32_t> targets;  ///< [B * S] ids, or kNoTarget
};
/// The same in device memory, i32.
struct BatchTensors {
  Tensor tokens, targets;
};

/// One row per input. All code that lays out, names or copies inputs uses this table.
struct BatchInput {
  std::string_view name;
  std::span<std::int32_t> Batch::*host;
  Tensor BatchTensors::*device;
};
inline constexpr std::array kBatchInputs{BatchInput{"tokens", &Batch::tokens, &BatchTensors::tokens},
                                         BatchInput{"targets", &Batch::targets, &BatchTensors::targets}};

/// The source of samples. Thread-safe: rank threads share it.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Writes samples [first, first + count).
  virtual void fill(Index first_sample, Index count, const Batch& batch) const = 0;
};

/// Targets that have a loss.
Index count_targets(std::span<const std::int32_t> targets);

/// The layout of a microbatch's inputs in one block, which one upload fills: its StepState, then every input.
class BatchLayout {
 public:
  explicit BatchLayout(Index tokens) : tokens_(tokens) {}
  Index tokens() const { return tokens_; }
  Index bytes() const { return kAlignment + static_cast<Index>(kBatchInputs.size()) * input_bytes(); }
  /// A block with only the StepState, for chunks that read no input.
  static constexpr Index state_bytes() { return sizeof(StepState); }
  Batch on_host(std::span<std::byte> block) const;
  /// Views of a block, u8 [bytes()]. Without a block, tensors without memory.
  BatchTensors inputs_of(const Tensor& block) const;
  static Tensor state_of(const Tensor& block);

 private:
  Index input_bytes() const { return round_up(tokens_ * size_of(DType::i32), kAlignment); }
  Index offset(std::size_t input) const { return kAlignment + static_cast<Index>(input) * input_bytes(); }

  Index tokens_;
};

}  // namespace megalith::model
