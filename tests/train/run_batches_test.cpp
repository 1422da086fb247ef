#include "megalith/train/run_batches.h"

#include <gtest/gtest.h>

#include "megalith/model/model_config.h"

// Batches of a masked language model: the same samples however they are cut, and rows that point at what is masked.
// Batches of samples with documents: also on ranks that need nothing else of them.
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

model::ModelConfig small_decoder_of_documents() {
  model::ModelConfig m;
  m.seq_len = 20;
  m.documents = ops::DocumentMask::given;
  return m;
}

/// The documents that a source gives to ranks at an end of a model, after a comparison with ranks in the middle.
std::vector<std::int32_t> documents_from(const model::BatchSource& source, Index first, Index count) {
  BatchBlock all(small_decoder_of_documents(), count), middle(small_decoder_of_documents(), count);
  const model::Batch whole = all.batch();
  const model::Batch part =
      middle.layout.on_host(std::span(middle.block).first(static_cast<std::size_t>(middle.layout.middle_bytes())));
  EXPECT_TRUE(part.tokens.empty());
  source.fill(first, count, whole);
  source.fill(first, count, part);
  EXPECT_TRUE(std::ranges::equal(part.document_begin, whole.document_begin));
  EXPECT_TRUE(std::ranges::equal(part.positions, whole.positions));
  for (std::size_t i = 0; i < whole.positions.size(); ++i)
    EXPECT_EQ(whole.positions[i] + whole.document_begin[i], static_cast<std::int32_t>(i % 20)) << i;
  return {whole.document_begin.begin(), whole.document_begin.end()};
}

TEST(RunBatches, OfTextsHaveTheDocumentsOfTheirTokens) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 90; ++i) tokens.push_back(i % 13 == 5 ? 0 : 1 + i % 7);
  const data::SampleSet samples(data::memory_source("text", tokens, 10), {0, 90}, 20, 0);
  const data::TrainingSet set({{samples, 1}});
  const train::TrainBatches source(set, 5);
  const std::vector<std::int32_t> begins = documents_from(source, 3, 2);
  BatchBlock block(small_decoder_of_documents(), 2);
  const model::Batch batch = block.batch();
  source.fill(3, 2, batch);
  for (std::size_t i = 0; i < 40; ++i) {
    const bool begins_here = i % 20 == 0 || batch.tokens[i - 1] == 0;
    EXPECT_EQ(begins[i] == static_cast<std::int32_t>(i % 20), begins_here) << i;
  }
  const std::vector<std::int32_t> held_out = documents_from(train::HeldOutBatches(samples), 3, 2);
  EXPECT_EQ(held_out[5], 0) << "token 65";
  EXPECT_EQ(held_out[11], 11) << "token 71, after an end";
}

TEST(RunBatches, OfConversationsHaveADocumentForEach) {
  std::vector<data::ChatTokens> chats;
  for (const std::size_t size : {7, 12, 15, 4})
    chats.push_back({std::vector<std::int32_t>(size + 1, 3), std::vector<std::uint8_t>(size + 1, 1)});
  const data::ChatSamples set("chats", chats, 20, data::ChatTooLong::cut, data::ChatPacking::on);
  ASSERT_EQ(set.count(), 2);
  const std::vector<std::int32_t> begins = documents_from(train::ChatHeldOutBatches(set), 0, 3);
  EXPECT_EQ(begins[6], 0);
  EXPECT_EQ(begins[18], 7) << "the second conversation";
  EXPECT_EQ(begins[19], 19) << "padding";
  EXPECT_EQ(begins[20 + 14], 0);
  EXPECT_EQ(begins[20 + 18], 15);
  EXPECT_EQ(begins[40 + 9], 9) << "a sample without a loss";
  documents_from(train::ChatTrainBatches(set, 1), 0, 3);
}

}  // namespace
}  // namespace megalith
