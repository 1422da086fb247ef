#include "megalith/data/sentence_source.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/data/bert_samples.h"
#include "megalith/data/corpus_builder.h"
#include "megalith/data/data_config.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

// Documents of sentences from the files of a recipe, and what samples need of a vocabulary.
namespace megalith::data {
namespace {

class OpenSentences : public testing::Test {
 protected:
  OpenSentences() {
    write_all(dir_ / "a.txt", "One is here. Two came. Three");
    write_all(dir_ / "b.jsonl", "{\"text\": \"Four. Five went.\"}\n{\"text\": \"\"}\n{\"text\": \"Six\"}\n");
    CorpusOptions options;
    options.sequences = Sequences::sentences;
    IndexedDatasetBuilder builder(*fs_, dir_ / "tokens", {.vocab_size = 256});
    build_corpus(*fs_, {dir_ / "b.jsonl"}, *tokenizer::bytes(), options, builder);
  }
  SentenceSourcePtr open(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back((dir_ / name).string());
    return open_sentences(*fs_, paths, *tokenizer::bytes(), "data.train");
  }
  /// Sentences end with |, documents with a new line.
  static std::string text_of(const SentenceSource& source) {
    std::string text;
    for (Index document = 0; document < source.num_documents(); ++document) {
      const Index end = source.text_end(document);
      for (Index i = source.first_sentence(document); i < source.first_sentence(document + 1); ++i) {
        const Index begin = source.first_token(i), next = std::min(source.first_token(i + 1), end);
        if (next <= begin) continue;
        std::vector<std::int32_t> ids(static_cast<std::size_t>(next - begin));
        source.copy(begin, ids);
        text += tokenizer::bytes()->decode(ids) + "|";
      }
      text += "\n";
    }
    return text;
  }

  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
};

TEST_F(OpenSentences, CutsTextsWhenTheyAreRead) {
  EXPECT_EQ(text_of(*open({"a.txt"})), "One is here.|Two came.|Three|\n");
  EXPECT_EQ(text_of(*open({"b.jsonl"})), "Four.|Five went.|\nSix|\n");
  EXPECT_EQ(text_of(*open({"tokens"})), text_of(*open({"b.jsonl"}))) << "without the tokens that end documents";
  EXPECT_EQ(text_of(*open({"tokens", "a.txt", "b.jsonl"})),
            "Four.|Five went.|\nSix|\nOne is here.|Two came.|Three|\nFour.|Five went.|\nSix|\n");
  EXPECT_NE(error_of<InputError>([&] { open({"absent"}); }).find("absent"), std::string::npos);
}

TEST_F(OpenSentences, CutsTheTextsOfAParquetFile) {
  const std::string file = (io::Path(MEGALITH_TEST_DATA) / "parquet" / "zstd_v2.parquet").string();
  CorpusOptions options;
  options.sequences = Sequences::sentences;
  IndexedDatasetBuilder builder(*fs_, dir_ / "of_parquet", {.vocab_size = 256});
  build_corpus(*fs_, {file}, *tokenizer::bytes(), options, builder);
  const std::string want = text_of(*open({"of_parquet"}));
  EXPECT_GT(want.size(), 86U);
  EXPECT_EQ(text_of(*open({file})), want);
}

TEST_F(OpenSentences, ASplitIsBetweenDocuments) {
  SentenceText text;
  for (const int tokens : {10, 30, 0, 20, 5, 35}) {
    text.tokens.resize(text.tokens.size() + static_cast<std::size_t>(tokens));
    text.end_document();
  }
  const SentenceSourcePtr source = memory_sentences("text", std::move(text));
  const auto ends = [&](const char* split) {
    std::vector<Index> all;
    Index begin = 0;
    for (const BertSamples::Documents& part : split_documents(parse_split(split), *source)) {
      EXPECT_EQ(part.first, begin);
      all.push_back(begin = part.last);
    }
    return all;
  };
  EXPECT_EQ(ends("1"), (std::vector<Index>{6, 6, 6}));
  EXPECT_EQ(ends("40,60"), (std::vector<Index>{2, 6, 6})) << "40 tokens are two documents";
  EXPECT_EQ(ends("41,59"), (std::vector<Index>{4, 6, 6})) << "the 41st is in the fourth document";
  EXPECT_EQ(ends("5,1,4"), (std::vector<Index>{4, 4, 6}));
  EXPECT_EQ(ends("60,5,35"), (std::vector<Index>{4, 5, 6}));
}

TEST_F(OpenSentences, AVocabularyOfBertHasWhatSamplesNeed) {
  write_all(dir_ / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ncat\n##s\nsat\n");
  const auto tokenizer = tokenizer::make_tokenizer("bert-uncased", dir_.path(), *fs_);
  const BertVocabulary vocabulary = bert_vocabulary(*tokenizer);
  EXPECT_EQ(vocabulary.pad, 0);
  EXPECT_EQ(vocabulary.cls, 2);
  EXPECT_EQ(vocabulary.sep, 3);
  EXPECT_EQ(vocabulary.mask, 4);
  EXPECT_EQ(vocabulary.is_special, (std::vector<bool>{true, true, true, true, true, false, false, false}));
  EXPECT_EQ(vocabulary.starts_word, (std::vector<bool>{true, true, true, true, true, true, false, true}));
  EXPECT_EQ(error_of<ConfigError>([] { bert_vocabulary(*tokenizer::bytes()); }),
            "data.tokenizer = byte: has no [CLS], [SEP], [MASK], [PAD], which samples of masked language models need; "
            "use a vocabulary of BERT");
}

}  // namespace
}  // namespace megalith::data
