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

struct ModelConfig;

/// A target without a loss.
inline constexpr std::int32_t kNoTarget = -1;

/// The inputs of B samples of S tokens, by name, on the host, sample after sample. An input is empty where the model
/// does not have it, or where this rank's chunk does not need it.
struct Batch {
  std::span<std::int32_t> tokens;        ///< [B S] ids
  std::span<std::int32_t> targets;       ///< [B S] ids, or kNoTarget; of masked language models [B P]
  std::span<std::int32_t> lengths = {};  ///< [B] tokens of each sample, from its first; the others are padding
  // For masked language models. fill_rows() writes rows and row_of.
  std::span<std::int32_t> types = {};   ///< [B S] type of each token
  std::span<std::int32_t> rows = {};    ///< [B P], then [B] if samples have labels: nn::HeadInputs::rows
  std::span<std::int32_t> row_of = {};  ///< [B S]: nn::HeadInputs::row_of
  std::span<std::int32_t> labels = {};  ///< [B] class of each sample, or kNoTarget
};
/// The same in device memory. Undefined where the model does not have an input.
struct BatchTensors {
  Tensor tokens, targets, lengths = {}, types = {}, rows = {}, row_of = {}, labels = {};
};

/// The shape of an input of B samples of S tokens, of which P may be masked.
enum class InputShape : std::uint8_t {
  per_sample,  ///< [B]
  per_token,   ///< [B S]
  per_target,  ///< [B P], or [B S] where every token has a target
  per_row      ///< of the rows that heads read: [B P], and [B] more where samples have labels
};

/// The chunks whose block holds an input: those with the embedding or the head, which hold every input, or also those
/// in the middle.
enum class NeededBy : std::uint8_t { ends, all_chunks };

/// The sizes from which those of a microbatch's inputs follow.
struct BatchShape {
  Index samples = 0, seq_len = 0;
  ops::SampleLengths lengths = ops::SampleLengths::equal;
  Index masked = 0;   ///< P; 0: every token has a target, and heads read all rows
  Index types = 0;    ///< of tokens; 0: no input of types
  Index classes = 0;  ///< of samples; 0: they have no labels

  Index tokens() const { return samples * seq_len; }
  Index elements(InputShape shape) const;
};
/// Of a model.
BatchShape batch_shape(const ModelConfig& model, Index samples, Index seq_len);

/// One row per input. All code that lays out, names, uploads or copies inputs uses this table. A new input is a row, a
/// member of Batch and of BatchTensors, and its values in BatchSource::fill(). Inputs that all chunks need come first.
struct BatchInput {
  std::string_view name;
  InputShape shape = InputShape::per_token;
  DType dtype = DType::i32;
  NeededBy needed_by = NeededBy::ends;
  std::span<std::int32_t> Batch::*host = nullptr;
  Tensor BatchTensors::*device = nullptr;
  /// Whether batches of this shape have the input.
  bool (*is_in)(const BatchShape&) = [](const BatchShape&) { return true; };
  /// Numbers [first, end) of the losses with a term for each entry but kNoTarget.
  struct Losses {
    std::size_t first = 0, end = 0;
  } losses = {};
};
inline constexpr auto kHasMasked = [](const BatchShape& batch) { return batch.masked > 0; };
inline constexpr std::array kBatchInputs{
    BatchInput{.name = "lengths",
               .shape = InputShape::per_sample,
               .needed_by = NeededBy::all_chunks,
               .host = &Batch::lengths,
               .device = &BatchTensors::lengths,
               .is_in = [](const BatchShape& batch) { return batch.lengths == ops::SampleLengths::given; }},
    BatchInput{.name = "tokens", .host = &Batch::tokens, .device = &BatchTensors::tokens},
    BatchInput{.name = "targets",
               .shape = InputShape::per_target,
               .host = &Batch::targets,
               .device = &BatchTensors::targets,
               .losses = {0, 1}},
    BatchInput{.name = "types",
               .host = &Batch::types,
               .device = &BatchTensors::types,
               .is_in = [](const BatchShape& batch) { return batch.masked > 0 && batch.types > 0; }},
    BatchInput{.name = "rows",
               .shape = InputShape::per_row,
               .host = &Batch::rows,
               .device = &BatchTensors::rows,
               .is_in = kHasMasked},
    BatchInput{.name = "row_of", .host = &Batch::row_of, .device = &BatchTensors::row_of, .is_in = kHasMasked},
    BatchInput{.name = "labels",
               .shape = InputShape::per_sample,
               .host = &Batch::labels,
               .device = &BatchTensors::labels,
               .is_in = [](const BatchShape& batch) { return batch.classes > 0; },
               .losses = {1, 3}}};

/// Writes rows and row_of from the places of masked tokens in each sample, [B P]; -1: none.
void fill_rows(std::span<const std::int32_t> places, const Batch& batch);

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

/// The layout of a microbatch's inputs in one block, which one upload fills: its StepStates, then every input that the
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
  /// A second StepState: its loss_scale is that of losses of labels.
  static Tensor label_state_of(const Tensor& block);

 private:
  BatchShape shape_;
  std::array<Index, kBatchInputs.size()> offsets_ = {};
  Index bytes_ = 0, middle_bytes_ = 0;
};

}  // namespace megalith::model
