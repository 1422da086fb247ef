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
/// does not have it, or where this rank's chunk does not need it. Where a sample has several sequences (a question of
/// RACE four), all inputs but labels have entries for each sequence: B is then the number of sequences.
struct Batch {
  std::span<std::int32_t> tokens;        ///< [B S] ids
  std::span<std::int32_t> targets;       ///< [B S] ids, or kNoTarget; of masked language models [B P]
  std::span<std::int32_t> lengths = {};  ///< [B] tokens of each sample, from its first; the others are padding
  /// [B S] the first token of each token's document within its sample, and the token's number in its document.
  std::span<std::int32_t> document_begin = {}, positions = {};
  // For encoders. fill_rows() writes rows and row_of.
  std::span<std::int32_t> types = {};   ///< [B S] type of each token
  std::span<std::int32_t> rows = {};    ///< [B P], then [B] if heads read first tokens: nn::HeadInputs::rows
  std::span<std::int32_t> row_of = {};  ///< [B S]: nn::HeadInputs::row_of
  std::span<std::int32_t> labels = {};  ///< [B] class of each sample, or kNoTarget; of tasks see nn::TaskHead
};
/// The same in device memory. Undefined where the model does not have an input.
struct BatchTensors {
  Tensor tokens, targets, lengths = {}, document_begin = {}, positions = {}, types = {}, rows = {}, row_of = {},
                          labels = {};
};

/// The shape of an input of B sequences of S tokens, of which P may be masked.
enum class InputShape : std::uint8_t {
  per_sequence,  ///< [B]
  per_token,     ///< [B S]
  per_target,    ///< [B P], or [B S] where every token has a target
  per_row,       ///< of the rows that heads read: [B P], and [B] more where they read first tokens
  per_label      ///< of the samples' labels
};

/// Whether heads read the first token of each sequence, as a summary of it.
enum class FirstTokens : std::uint8_t { unread, read };

/// The chunks whose block holds an input: those with the embedding or the head, which hold every input, or also those
/// in the middle.
enum class NeededBy : std::uint8_t { ends, all_chunks };

/// The sizes from which those of a microbatch's inputs follow.
struct BatchShape {
  Index samples = 0, seq_len = 0;
  ops::SampleLengths lengths = ops::SampleLengths::equal;
  Index sequences = 1;  ///< of a sample, each of seq_len tokens
  Index masked = 0;     ///< P; 0: heads read all rows, or first tokens only
  bool has_targets = true;
  Index types = 0;   ///< of tokens; 0: no input of types
  Index labels = 0;  ///< of a sample
  FirstTokens first_tokens = FirstTokens::unread;
  ops::DocumentMask documents = ops::DocumentMask::none;

  Index tokens() const { return samples * sequences * seq_len; }
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
  /// How many losses have a term for each entry but kNoTarget. Losses are numbered in the order of this table.
  std::size_t losses = 0;
};
inline constexpr auto kReadsRows = [](const BatchShape& batch) {
  return batch.masked > 0 || batch.first_tokens == FirstTokens::read;
};
inline constexpr auto kHasDocuments = [](const BatchShape& batch) {
  return batch.documents == ops::DocumentMask::given;
};
inline constexpr std::array kBatchInputs{
    BatchInput{.name = "lengths",
               .shape = InputShape::per_sequence,
               .needed_by = NeededBy::all_chunks,
               .host = &Batch::lengths,
               .device = &BatchTensors::lengths,
               .is_in = [](const BatchShape& batch) { return batch.lengths == ops::SampleLengths::given; }},
    BatchInput{.name = "document_begin",
               .needed_by = NeededBy::all_chunks,
               .host = &Batch::document_begin,
               .device = &BatchTensors::document_begin,
               .is_in = kHasDocuments},
    BatchInput{.name = "positions",
               .needed_by = NeededBy::all_chunks,
               .host = &Batch::positions,
               .device = &BatchTensors::positions,
               .is_in = kHasDocuments},
    BatchInput{.name = "tokens", .host = &Batch::tokens, .device = &BatchTensors::tokens},
    BatchInput{.name = "targets",
               .shape = InputShape::per_target,
               .host = &Batch::targets,
               .device = &BatchTensors::targets,
               .is_in = [](const BatchShape& batch) { return batch.has_targets; },
               .losses = 1},
    BatchInput{.name = "types",
               .host = &Batch::types,
               .device = &BatchTensors::types,
               .is_in = [](const BatchShape& batch) { return batch.types > 0; }},
    BatchInput{.name = "rows",
               .shape = InputShape::per_row,
               .host = &Batch::rows,
               .device = &BatchTensors::rows,
               .is_in = kReadsRows},
    BatchInput{.name = "row_of", .host = &Batch::row_of, .device = &BatchTensors::row_of, .is_in = kReadsRows},
    BatchInput{.name = "labels",
               .shape = InputShape::per_label,
               .host = &Batch::labels,
               .device = &BatchTensors::labels,
               .is_in = [](const BatchShape& batch) { return batch.labels > 0; },
               .losses = 2}};

/// Writes rows and row_of from the places of masked tokens in each sequence, [B P]; -1: none.
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
