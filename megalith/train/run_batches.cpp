#include "megalith/train/run_batches.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

namespace megalith::train {
namespace {

/// Calls make(i, sample) for each sample i of a batch, to write it.
template <class Make>
void fill_bert(const data::BertSampleConfig& config, Index count, const model::Batch& batch, Make&& make) {
  const auto seq_len = static_cast<std::size_t>(config.seq_len), masked = static_cast<std::size_t>(config.max_masked()),
             samples = static_cast<std::size_t>(count);
  std::vector<std::int32_t> scratch(2 * seq_len + masked), places(samples * masked);
  const auto part = [&](std::span<std::int32_t> input, std::size_t sample, std::size_t size, std::size_t spare) {
    return input.empty() ? std::span(scratch).subspan(spare, size) : input.subspan(sample * size, size);
  };
  for (std::size_t i = 0; i < samples; ++i) {
    data::BertSample sample{.tokens = part(batch.tokens, i, seq_len, 0),
                            .types = part(batch.types, i, seq_len, seq_len),
                            .places = std::span(places).subspan(i * masked, masked),
                            .targets = part(batch.targets, i, masked, 2 * seq_len)};
    make(static_cast<Index>(i), sample);
    batch.lengths[i] = sample.length;
    if (!batch.labels.empty()) batch.labels[i] = sample.label;
  }
  if (!batch.rows.empty()) model::fill_rows(places, batch);
}

/// Writes sample sample_of(i) of a set, or where that is none one without a loss, for each i of a batch. Its sequences
/// without a loss have one token.
template <class SampleOf>
void fill_task(const tasks::TaskSet& set, Index count, const model::Batch& batch, SampleOf&& sample_of) {
  const auto sequences = static_cast<std::size_t>(set.sequences()), samples = static_cast<std::size_t>(count),
             tokens = sequences * static_cast<std::size_t>(set.config().seq_len);
  std::vector<std::int32_t> scratch(batch.tokens.empty() ? 2 * tokens : 0);
  std::array<std::int32_t, 2> labels{};
  const auto part = [&](std::span<std::int32_t> input, std::size_t sample, std::size_t spare) {
    return input.empty() ? std::span(scratch).subspan(spare, tokens) : input.subspan(sample * tokens, tokens);
  };
  for (std::size_t i = 0; i < samples; ++i) {
    const tasks::TaskSample sample{.tokens = part(batch.tokens, i, 0),
                                   .types = part(batch.types, i, tokens),
                                   .lengths = batch.lengths.subspan(i * sequences, sequences),
                                   .labels = std::span(labels).first(static_cast<std::size_t>(set.labels()))};
    if (const std::optional<Index> number = sample_of(static_cast<Index>(i))) {
      set.make(*number, sample);
    } else {
      for (const std::span<std::int32_t> ids : {sample.tokens, sample.types}) std::ranges::fill(ids, 0);
      std::ranges::fill(sample.lengths, 1);
      std::ranges::fill(sample.labels, model::kNoTarget);
    }
    for (std::size_t k = 0; k < sample.labels.size() && !batch.labels.empty(); ++k)
      batch.labels[k * samples + i] = sample.labels[k];
  }
  if (!batch.rows.empty()) model::fill_rows({}, batch);
}

/// Those of a sample of a batch that has them.
data::SampleDocuments documents_of(const model::Batch& batch, std::size_t sample, std::size_t seq_len) {
  return {.begin = batch.document_begin.subspan(sample * seq_len, seq_len),
          .positions = batch.positions.subspan(sample * seq_len, seq_len)};
}

/// Calls read(tokens, targets) to write samples of a corpus, and cuts them into documents where it separates them.
template <class Set, class Read>
void fill_text(const Set& set, Index count, const model::Batch& batch, Read&& read) {
  const auto seq_len = static_cast<std::size_t>(set.seq_len()), samples = static_cast<std::size_t>(count);
  std::vector<std::int32_t> scratch(batch.tokens.empty() ? 2 * samples * seq_len : 0);
  const std::span all(scratch);
  const std::span tokens = batch.tokens.empty() ? all.first(samples * seq_len) : batch.tokens;
  read(tokens, batch.targets.empty() ? all.last(samples * seq_len) : batch.targets);
  for (std::size_t i = 0; i < samples && !batch.document_begin.empty(); ++i) {
    data::put_documents_of(tokens.subspan(i * seq_len, seq_len), set.end_of_document().value(),
                           documents_of(batch, i, seq_len));
  }
}

/// Writes sample sample_of(i), or where that is none one without a loss, for each i of a batch.
template <class SampleOf>
void fill_chat(const data::ChatSamples& set, Index count, const model::Batch& batch, SampleOf&& sample_of) {
  static_assert(data::ChatSamples::kNoTarget == model::kNoTarget);
  const auto seq_len = static_cast<std::size_t>(set.seq_len());
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    const std::optional<Index> number = sample_of(static_cast<Index>(i));
    if (!batch.document_begin.empty()) {
      const data::SampleDocuments documents = documents_of(batch, i, seq_len);
      number ? set.put_documents(*number, documents) : documents.put_padding(0);
    }
    if (batch.tokens.empty()) continue;
    const std::span tokens = batch.tokens.subspan(i * seq_len, seq_len),
                    targets = batch.targets.subspan(i * seq_len, seq_len);
    if (number) {
      set.copy(*number, tokens, targets);
    } else {
      std::ranges::fill(tokens, 0);
      std::ranges::fill(targets, model::kNoTarget);
    }
  }
}

}  // namespace

void TrainBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_text(set_, count, batch, [&](std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    order_.fill(first_sample, tokens, targets);
  });
}

void HeldOutBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_text(set_, count, batch, [&](std::span<std::int32_t> tokens, std::span<std::int32_t> targets) {
    const Index left = std::max<Index>(0, set_.count() - first_sample) * set_.seq_len();
    const auto real = static_cast<std::size_t>(std::min(left, std::ssize(tokens)));
    if (real > 0) data::fill_batch(order_, set_, first_sample, tokens.first(real), targets.first(real));
    std::ranges::fill(tokens.subspan(real), 0);
    std::ranges::fill(targets.subspan(real), model::kNoTarget);
  });
}

void BertTrainBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_bert(set_.config(), count, batch,
            [&](Index i, data::BertSample& sample) { set_.make(first_sample + i, sample); });
}

void BertHeldOutBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_bert(set_.config(), count, batch, [&](Index i, data::BertSample& sample) {
    if (first_sample + i < set_.count()) return set_.make(0, first_sample + i, sample);
    for (const std::span<std::int32_t> ids : {sample.tokens, sample.types}) std::ranges::fill(ids, 0);
    for (const std::span<std::int32_t> none : {sample.places, sample.targets})
      std::ranges::fill(none, model::kNoTarget);
    sample.length = 0;
    sample.label = model::kNoTarget;
  });
}

void TaskTrainBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_task(set_, count, batch, [&](Index i) -> std::optional<Index> {
    const Index number = first_sample + i, epoch = number / samples_per_epoch_, place = number % samples_per_epoch_;
    if (place >= set_.count()) return std::nullopt;
    return order_.sample(epoch * set_.count() + place);
  });
}

void TaskHeldOutBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_task(set_, count, batch, [&](Index i) {
    const Index number = first_sample + i;
    return number < set_.count() ? std::optional(number) : std::nullopt;
  });
}

void ChatTrainBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_chat(set_, count, batch, [&](Index i) { return std::optional(order_.sample(first_sample + i)); });
}

void ChatHeldOutBatches::fill(Index first_sample, Index count, const model::Batch& batch) const {
  fill_chat(set_, count, batch, [&](Index i) {
    const Index number = first_sample + i;
    return number < set_.count() ? std::optional(number) : std::nullopt;
  });
}

}  // namespace megalith::train
