#include "megalith/train/run_batches.h"

#include <gtest/gtest.h>

#include "megalith/model/model_config.h"

// Batches of a masked language model: the same samples however they are cut, and rows that point at what is masked.
namespace megalith {
namespace {

constexpr std::int32_t kBertIds = 60;

data::BertSamples small_bert_samples(data::SentenceOrder order = data::SentenceOrder::sop) {
  data::SentenceText text;
  for (int document = 0; document < 7; ++document) {
    for (int sentence = 0; sentence < 5; ++sentence) {
      for (int i = 0; i < 3 + sentence; ++i)
        text.tokens.push_back(5 + (document * 11 + sentence * 7 + i * 3) % (kBertIds - 5));
      text.end_sentence();
    }
    text.end_document();
  }
  data::BertVocabulary vocabulary{.cls = 1, .sep = 2, .mask = 3, .pad = 0, .is_special = {}, .starts_word = {}};
  for (std::int32_t id = 0; id < kBertIds; ++id) {
    vocabulary.is_special.push_back(id < 5);
    vocabulary.starts_word.push_back(true);
  }
  return {data::memory_sentences("text", std::move(text)), {0, 7}, vocabulary, {.seq_len = 20, .order = order}, 1234};
}

/// A block of inputs of `samples` samples, and its views.
struct BatchBlock {
  BatchBlock(const model::ModelConfig& model, Index samples)
      : layout(model::batch_shape(model, samples, 20)), block(static_cast<std::size_t>(layout.bytes())) {}
  model::Batch batch() { return layout.on_host(block); }
  model::BatchLayout layout;
  std::vector<std::byte> block;
};

model::ModelConfig small_bert() {
  model::ModelConfig m = model::bert_defaults();
  m.seq_len = m.bert.seq_len = 20;
  return m;
}

TEST(RunBatches, OfBertAreTheSameSamplesHoweverTheyAreCut) {
  const data::BertSamples samples = small_bert_samples();
  const data::BertTrainingSet set({{samples, 1}}, 5);
  const train::BertTrainBatches source(set);
  BatchBlock all(small_bert(), 12);
  const model::Batch whole = all.batch();
  source.fill(3, 12, whole);
  for (Index first = 0; first < 12; first += 3) {
    BatchBlock part(small_bert(), 3);
    const model::Batch batch = part.batch();
    source.fill(3 + first, 3, batch);
    for (const auto input : {&model::Batch::tokens, &model::Batch::targets, &model::Batch::lengths,
                             &model::Batch::types, &model::Batch::labels}) {
      const std::span<std::int32_t> got = batch.*input;
      const std::span<std::int32_t> want = (whole.*input).subspan(got.size() / 3 * static_cast<std::size_t>(first));
      EXPECT_TRUE(std::ranges::equal(got, want.first(got.size()))) << first;
    }
  }
}

TEST(RunBatches, RowsOfBertPointAtMaskedTokensAndFirstOnes) {
  const data::BertSamples samples = small_bert_samples();
  const data::BertTrainingSet set({{samples, 1}}, 5);
  BatchBlock inputs(small_bert(), 4);
  const model::Batch batch = inputs.batch();
  train::BertTrainBatches(set).fill(0, 4, batch);
  const std::size_t masked = batch.targets.size();
  ASSERT_EQ(masked, 8U);
  ASSERT_EQ(batch.rows.size(), masked + 4);
  for (std::size_t row = 0; row < masked; ++row) {
    EXPECT_EQ(batch.rows[row] < 0, batch.targets[row] < 0) << row;
    if (batch.rows[row] < 0) continue;
    const auto token = static_cast<std::size_t>(batch.rows[row]);
    EXPECT_EQ(token / 20, row / 2);
    EXPECT_LT(batch.rows[row] % 20, batch.lengths[token / 20]);
    EXPECT_EQ(batch.row_of[token], static_cast<std::int32_t>(row));
  }
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(batch.rows[masked + i], static_cast<std::int32_t>(20 * i));
  Index pointed = 0;
  for (const std::int32_t row : batch.row_of) pointed += row >= 0 ? 1 : 0;
  EXPECT_EQ(pointed, std::ranges::count_if(batch.rows, [](std::int32_t row) { return row >= 0; }));
  model::LossCounts counts{};
  model::count_losses(batch, counts);
  EXPECT_EQ(counts[0], pointed - 4);
  EXPECT_EQ(counts[1], 4);
  EXPECT_EQ(counts[2], 4);
}

TEST(RunBatches, OfEveryOrderAreThoseOfTheSet) {
  for (const auto order : {data::SentenceOrder::sop, data::SentenceOrder::nsp, data::SentenceOrder::none}) {
    SCOPED_TRACE(data::kSentenceOrderNames[static_cast<std::size_t>(order)]);
    const bool is_pair = order != data::SentenceOrder::none;
    const data::BertSamples samples = small_bert_samples(order);
    const data::BertTrainingSet set({{samples, 1}}, 5);
    model::ModelConfig model = small_bert();
    model.bert.order = order;
    BatchBlock inputs(model, 12);
    const model::Batch batch = inputs.batch();
    train::BertTrainBatches(set).fill(3, 12, batch);
    ASSERT_EQ(batch.labels.size(), is_pair ? 12U : 0U);
    ASSERT_EQ(batch.rows.size(), 24 + batch.labels.size());
    std::vector<std::int32_t> tokens(20), types(20), places(2), targets(2);
    int second = 0, of_class_1 = 0;
    for (std::size_t i = 0; i < 12; ++i) {
      data::BertSample want{.tokens = tokens, .types = types, .places = places, .targets = targets};
      set.make(3 + static_cast<Index>(i), want);
      EXPECT_TRUE(std::ranges::equal(batch.tokens.subspan(20 * i, 20), tokens)) << i;
      EXPECT_TRUE(std::ranges::equal(batch.types.subspan(20 * i, 20), types)) << i;
      EXPECT_TRUE(std::ranges::equal(batch.targets.subspan(2 * i, 2), targets)) << i;
      EXPECT_EQ(batch.lengths[i], want.length) << i;
      for (std::size_t k = 0; k < 2; ++k)
        EXPECT_EQ(batch.rows[2 * i + k], places[k] < 0 ? -1 : static_cast<std::int32_t>(20 * i) + places[k]) << i;
      EXPECT_EQ(batch.row_of[20 * i], is_pair ? static_cast<std::int32_t>(24 + i) : -1) << i;
      second += static_cast<int>(std::ranges::count(types, 1));
      if (!is_pair) continue;
      EXPECT_EQ(batch.labels[i], want.label) << i;
      of_class_1 += want.label;
    }
    EXPECT_EQ(second > 0, is_pair);
    EXPECT_EQ(of_class_1 > 0 && of_class_1 < 12, is_pair);
  }
}

TEST(RunBatches, RanksInTheMiddleGetTheLengths) {
  const data::BertSamples samples = small_bert_samples();
  const data::BertTrainingSet set({{samples, 1}}, 5);
  const train::BertTrainBatches source(set);
  BatchBlock all(small_bert(), 4), middle(small_bert(), 4);
  const model::Batch whole = all.batch();
  const model::Batch lengths =
      middle.layout.on_host(std::span(middle.block).first(static_cast<std::size_t>(middle.layout.middle_bytes())));
  EXPECT_TRUE(lengths.tokens.empty());
  source.fill(2, 4, whole);
  source.fill(2, 4, lengths);
  EXPECT_TRUE(std::ranges::equal(lengths.lengths, whole.lengths));
}

TEST(RunBatches, HeldOutOnesGoOnWithoutALoss) {
  const data::BertSamples samples = small_bert_samples();
  BatchBlock inputs(small_bert(), 4);
  const model::Batch batch = inputs.batch();
  train::BertHeldOutBatches(samples).fill(samples.count() - 1, 4, batch);
  model::LossCounts counts{};
  model::count_losses(batch, counts);
  EXPECT_GE(counts[0], 1);
  EXPECT_EQ(counts[1], 1);
  EXPECT_EQ(batch.lengths[1], 0);
  EXPECT_EQ(batch.labels[3], model::kNoTarget);
  std::vector<std::int32_t> tokens(20), types(20), places(2), targets(2);
  data::BertSample last{.tokens = tokens, .types = types, .places = places, .targets = targets};
  samples.make(0, samples.count() - 1, last);
  EXPECT_TRUE(std::ranges::equal(batch.tokens.first(20), tokens)) << "as in epoch 0";
}

}  // namespace
}  // namespace megalith
