#include "megalith/data/bert_training_set.h"

#include <map>
#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/data_config.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

// The samples of a run of a masked language model, from the files of a recipe.
namespace megalith::data {
namespace {

class BertData : public testing::Test {
 protected:
  BertData() {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n.\n", cats, dogs;
    for (char letter = 'a'; letter <= 'z'; ++letter) vocabulary += std::string(1, letter) + "\n";
    vocabulary += "cat\nsat\ndog\nran\n";
    write_all(dir_ / "vocab.txt", vocabulary);
    tokenizer_ = tokenizer::make_tokenizer("bert-uncased", dir_.path(), *fs_);
    for (int i = 0; i < 20; ++i) {
      cats += "{\"text\": \"Cat sat. A cat sat. Cat cat sat.\"}\n";
      dogs += "{\"text\": \"Dog ran. A dog ran. Dog dog ran.\"}\n";
    }
    write_all(dir_ / "cats.jsonl", cats);
    write_all(dir_ / "dogs.jsonl", dogs);
    write_all(dir_ / "single.jsonl", "{\"text\": \"Cat sat\"}\n{\"text\": \"Dog ran\"}\n");
    write_all(dir_ / "one.jsonl", "{\"text\": \"Cat sat. A cat sat. Cat cat sat.\"}\n");
  }
  std::string path(const char* name) const { return (dir_ / name).string(); }
  BertDataSets open(std::vector<std::string> train, std::vector<std::string> valid = {}, std::string split = "",
                    std::uint64_t seed = 1) const {
    const DataConfig config{.train = std::move(train), .valid = std::move(valid), .split = std::move(split)};
    return open_bert_data(*fs_, config, *tokenizer_, {{.seq_len = 16, .short_fraction = 0}, seed});
  }
  /// Sample n: its tokens as text, with its label.
  std::string made(const BertTrainingSet& set, Index n) const {
    std::vector<std::int32_t> tokens(16), types(16), places(static_cast<std::size_t>(set.config().max_masked())),
        targets = places;
    BertSample sample{tokens, types, places, targets};
    set.make(n, sample);
    return str(tokenizer_->decode(tokens), sample.label, places[0]);
  }

  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

TEST_F(BertData, EachEpochHasEverySampleAndMasksItAnew) {
  const BertDataSets sets = open({path("cats.jsonl")});
  EXPECT_EQ(sets.train.count(), 20);
  EXPECT_EQ(sets.train.num_tokens(), 20 * 11);
  EXPECT_EQ(sets.train.name(), path("cats.jsonl"));
  EXPECT_FALSE(sets.valid.has_value());
  std::set<std::string> different;
  for (Index n = 0; n < 60; ++n) {
    EXPECT_EQ(made(sets.train, n), made(open({path("cats.jsonl")}).train, n)) << n;
    different.insert(made(sets.train, n));
  }
  EXPECT_GT(different.size(), 10U);
  EXPECT_NE(made(sets.train, 0) + made(sets.train, 1) + made(sets.train, 2),
            made(open({path("cats.jsonl")}, {}, "", 2).train, 0) +
                made(open({path("cats.jsonl")}, {}, "", 2).train, 1) +
                made(open({path("cats.jsonl")}, {}, "", 2).train, 2));
}

TEST_F(BertData, WeightsAreSharesOfSamples) {
  const BertDataSets sets = open({"0.75 " + path("cats.jsonl"), "0.25 " + path("dogs.jsonl")}, {path("dogs.jsonl")});
  Index cats = 0;
  for (Index n = 0; n < 400; ++n) {
    const std::string text = made(sets.train, n);
    const bool has_cats = text.find("cat") != std::string::npos || text.find("sat") != std::string::npos;
    cats += has_cats ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(cats), 300, 20);  // a text whose words are all masked or replaced may look otherwise
  EXPECT_EQ(sets.valid->count(), 20);
  EXPECT_EQ(sets.train.name(), str("0.75 ", path("cats.jsonl"), ", 0.25 ", path("dogs.jsonl")));
}

TEST_F(BertData, ASplitDividesDocuments) {
  const BertDataSets sets = open({path("cats.jsonl")}, {}, "0.8,0.2");
  EXPECT_EQ(sets.train.count(), 16);
  EXPECT_EQ(sets.valid->count(), 4);
  const std::string problem = error_of<InputError>([&] { open({path("one.jsonl")}, {}, "0.8,0.2"); });
  EXPECT_NE(problem.find("data.split = \"0.8,0.2\": leaves no document to hold out of the 1 of data.train"),
            std::string::npos)
      << problem;
}

TEST_F(BertData, NotesDocumentsThatGiveNoSamples) {
  EXPECT_EQ(open({path("cats.jsonl")}).notes.left_out, std::vector<std::string>{});
  EXPECT_EQ(open({path("cats.jsonl"), path("single.jsonl")}).notes.left_out,
            std::vector<std::string>{"data.train: 2 of 22 documents give no samples: a sample has two segments, and "
                                     "these have one sentence or none"});
}

TEST_F(BertData, FingerprintsDifferBetweenCorporaAndShares) {
  const auto fingerprint = [&](std::vector<std::string> train) { return open(std::move(train)).train.fingerprint(); };
  const std::string cats = path("cats.jsonl"), dogs = path("dogs.jsonl");
  const std::set<std::uint64_t> all = {fingerprint({cats}),
                                       fingerprint({dogs}),
                                       fingerprint({cats, dogs}),
                                       fingerprint({dogs, cats}),
                                       fingerprint({"1 " + cats, "2 " + dogs}),
                                       fingerprint({"1 " + cats, "1 " + dogs})};
  EXPECT_EQ(all.size(), 6U);
  EXPECT_EQ(fingerprint({cats}), fingerprint({cats}));
}

TEST_F(BertData, MistakesNameKeyFileAndFix) {
  EXPECT_EQ(error_of<InputError>([&] { open({path("single.jsonl")}); }),
            str("data.train: [", path("single.jsonl"),
                "] no document has two sentences: use bert.order = \"none\", or `data build --sentences`"));
  EXPECT_NE(error_of<InputError>([&] { open({path("cats.jsonl")}, {path("single.jsonl")}); }).find("data.valid: ["),
            std::string::npos);
  const DataConfig config{.train = {path("cats.jsonl")}};
  EXPECT_NE(error_of<ConfigError>([&] {
              open_bert_data(*fs_, config, *tokenizer::bytes(), {{.seq_len = 16}, 1});
            }).find("has no [CLS], [SEP], [MASK], [PAD]"),
            std::string::npos);
  EXPECT_NE(error_of<ConfigError>([&] {
              open({"1 " + path("cats.jsonl")}, {}, "0.9");
            }).find("does not go with a weighted data.train"),
            std::string::npos);
  EXPECT_NE(error_of<ConfigError>([&] {
              open({path("cats.jsonl")}, {"1 " + path("dogs.jsonl")});
            }).find("data.valid: has weights"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::data
