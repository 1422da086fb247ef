#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "megalith/ops/attention.h"
#include "megalith/ops/step_end.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/memory.h"

namespace megalith::model {

/// A target without a loss.
inline constexpr std::int32_t kNoTarget = -1;

/// The inputs of B samples of S tokens, by name, on the host, sample after sample. An input is empty where the model
/// does not have it, or where this rank's chunk does not need it.
struct Batch {
  std::span<std::int32_t> tokens;        ///< [B S] ids
  std::span<std::int32_t> targets;       ///< [B S] ids, or kNoTarget
  std::span<std::int32_t> lengths = {};  ///< [B] tokens of each sample, from its first; the others are padding
};
/// The same in device memory. Undefined where the model does not have an input.
struct BatchTensors {
  Tensor tokens, targets, lengths = {};
};

/// The shape of an input of B samples of S tokens. A head may read only some of the tokens of a sample, its places.
enum class InputShape : std::uint8_t {
  per_sample,  ///< [B]
  per_token,   ///< [B S]
  per_place    ///< [B places]
};

/// The chunks whose block holds an input: those with the embedding or the head, which hold every input, or also those
/// in the middle.
enum class NeededBy : std::uint8_t { ends, all_chunks };

/// The sizes from which those of a microbatch's inputs follow.
struct BatchShape {
  Index samples = 0, seq_len = 0;
  Index places = 0;  ///< per sample; 0: the model has none
  ops::SampleLengths lengths = ops::SampleLengths::equal;

  Index tokens() const { return samples * seq_len; }
  Index elements(InputShape shape) const {
    return samples * (shape == InputShape::per_sample ? 1 : shape == InputShape::per_token ? seq_len : places);
  }
};

/// One row per input. All code that lays out, names, uploads or copies inputs uses this table. A new input is a row, a
/// member of Batch and of BatchTensors, and its values in BatchSource::fill(). Inputs that all chunks need come first.
struct BatchInput {
  std::string_view name;
  InputShape shape = InputShape::per_token;
  DType dtype = DType::i32;
  NeededBy needed_by = NeededBy::ends;
  std::span<std::int32_t> Batch::*host = nullptr;
  Tensor BatchTensors::*device = nullptr;
  int loss = -1;  ///< number of the loss with a term for each entry but kNoTarget; -1: none

  /// Whether batches of this shape have the input.
  bool is_in(const BatchShape& batch) const {
    return host == &Batch::lengths ? batch.lengths == ops::SampleLengths::given : batch.elements(shape) > 0;
  }
};
inline constexpr std::array kBatchInputs{
    BatchInput{"lengths", InputShape::per_sample, DType::i32, NeededBy::all_chunks, &Batch::lengths,
               &BatchTensors::lengths},
    BatchInput{"tokens", InputShape::per_token, DType::i32, NeededBy::ends, &Batch::tokens, &BatchTensors::tokens},
    BatchInput{"targets", InputShape::per_token, DType::i32, NeededBy::ends, &Batch::targets, &BatchTensors::targets,
               0}};

/// The source of samples. Thread-safe: rank threads share it.
class BatchSource {
 public:
  virtual ~BatchSource() = default;
  /// Writes samples [first, first + count). Spans that are empty are left out.
  virtual void fill(Index first_sample, Index count, const Batch& batch) const = 0;
};

/// By loss of the model: how many terms it has.
using LossCounts = std::array<Index, ops::kMaxLosses>;
/// Adds the terms in a batch.
void count_losses(const Batch& batch, LossCounts& counts);

/// The layout of a microbatch's inputs in one block, which one upload fills: its StepState, then every input that the
/// model has. Chunks with the embedding or the head upload all of it, chunks in the middle the part that they need.
class BatchLayout {
 public:
  explicit BatchLayout(const BatchShape& shape);
  Index tokens() const { return shape_.tokens(); }
  Index bytes() const { return bytes_; }
  /// The part of the block that chunks in the middle need. At least the StepState.
  Index middle_bytes() const { return middle_bytes_; }
  /// Views of a block, or of its beginning. Inputs that do not lie in it are empty.
  Batch on_host(std::span<std::byte> block) const;
  /// Views of a block, u8 [bytes()]. Without a block, tensors without memory.
  BatchTensors inputs_of(const Tensor& block) const;
  static Tensor state_of(const Tensor& block);

 private:
  BatchShape shape_;
  std::array<Index, kBatchInputs.size()> offsets_ = {};
  Index bytes_ = 0, middle_bytes_ = 0;
};

}  // namespace megalith::model
