#include "megalith/tokenizer/tokenizer_trainer.h"

#include <algorithm>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/tokenizer_training.h"
#include "megalith/tokenizer/sentencepiece.h"
#include "megalith/tokenizer/tokenizer.h"

#include "tests/io/temp_dir.h"
#include "tests/support/random_text.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tokenizer {
namespace {

/// Learns as the papers say it: counts all pairs again for every merge.
std::vector<std::string> merge_words_plainly(const std::map<std::string, std::uint64_t>& words, std::size_t merges) {
  std::map<char, int> ids;  // the order of single letters decides ties
  std::vector<std::pair<std::vector<std::string>, std::uint64_t>> split;
  std::map<std::string, int> id_of;
  for (const auto& [word, count] : words) {
    std::vector<std::string> letters;
    for (const char c : word) {
      letters.emplace_back(1, c);
      ids[c] = 0;
    }
    split.push_back({letters, count});
  }
  for (const auto& [c, unused] : ids) id_of.emplace(std::string(1, c), static_cast<int>(id_of.size()));
  std::vector<std::string> learned;
  for (std::size_t merge = 0; merge < merges; ++merge) {
    std::map<std::pair<int, int>, std::uint64_t> counts;
    for (const auto& [letters, count] : split)
      for (std::size_t i = 0; i + 1 < letters.size(); ++i) counts[{id_of[letters[i]], id_of[letters[i + 1]]}] += count;
    const auto best = std::ranges::max_element(counts, {}, [](const auto& entry) {
      return std::tuple(entry.second, -entry.first.first, -entry.first.second);
    });
    if (best == counts.end() || best->second < 2) break;
    std::string left, right;
    for (const auto& [spelling, id] : id_of) {
      if (id == best->first.first) left = spelling;
      if (id == best->first.second) right = spelling;
    }
    learned.push_back(left + " " + right);
    id_of.emplace(left + right, static_cast<int>(id_of.size()));
    for (auto& [letters, count] : split) {
      std::vector<std::string> merged;
      for (std::size_t i = 0; i < letters.size(); ++i) {
        if (i + 1 < letters.size() && letters[i] == left && letters[i + 1] == right)
          merged.push_back(left + letters[++i]);
        else
          merged.push_back(letters[i]);
      }
      letters = merged;
    }
  }
  return learned;
}

TEST(PairMerger, LearnsAsThePlainAlgorithm) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const RandomSite site{.seed = seed};
    std::map<std::string, std::uint64_t> words;
    for (std::uint64_t i = 0; i < 60; ++i) {
      std::string word;
      for (std::uint64_t j = 0; j <= site.word(i * 100) % 7; ++j) word += "abcde"[site.word(i * 100 + j + 1) % 5];
      words[word] += 1 + site.word(i * 100 + 50) % 4;
    }
    std::vector<std::string> tokens = {"a", "b", "c", "d", "e"};
    PairMerger merger;
    std::vector<std::int32_t> symbols;
    for (const auto& [word, count] : words) {
      symbols.clear();
      for (const char c : word) symbols.push_back(c - 'a');
      merger.add_word(symbols, count);
    }
    const auto merges = merger.learn(
        tokens, {.vocab_size = 45, .join = [](const std::string& a, const std::string& b) { return a + b; }});
    std::vector<std::string> learned;
    for (const PairMerger::Merge& merge : merges)
      learned.push_back(
          str(tokens[static_cast<std::size_t>(merge.left)], ' ', tokens[static_cast<std::size_t>(merge.right)]));
    EXPECT_EQ(learned, merge_words_plainly(words, merges.size())) << "seed " << seed;
    EXPECT_GT(merges.size(), 20u);
  }
}

TEST(PairMerger, CountsInMoreThan32Bits) {
  PairMerger merger;
  const std::int32_t ab[] = {0, 1}, cd[] = {2, 3};
  merger.add_word(ab, std::uint64_t{1} << 33);
  merger.add_word(cd, 5);
  std::vector<std::string> tokens = {"a", "b", "c", "d"};
  merger.learn(tokens, {.vocab_size = 6, .join = [](const std::string& a, const std::string& b) { return a + b; }});
  EXPECT_EQ(tokens, (std::vector<std::string>{"a", "b", "c", "d", "ab", "cd"}));
}

TEST(WordCounts, DropsTheRarestAndCountsThem) {
  WordCounts words(std::uint64_t{1} << 20);
  for (int i = 0; i < 100000; ++i) {
    words.add("often", 2);
    words.add(str("w", i));
  }
  std::uint64_t left = 0;
  for (std::size_t i = 0; i < words.size(); ++i) left += words[i].count;
  EXPECT_EQ(words[0].text, "often");
  EXPECT_EQ(words[0].count, 200000u);
  EXPECT_GT(words.dropped_words(), 50000u);
  EXPECT_EQ(left + words.dropped_occurrences(), 300000u);
}

class TokenizerTrainer : public ::testing::Test {
 protected:
  TrainerOptions options(TokenizerType type, std::int64_t vocab_size) {
    std::ofstream out(dir / "text.jsonl");
    for (std::uint64_t seed = 0; seed < 200; ++seed)
      out << nlohmann::json{{"text", str("The cat's ", seed, " hats; the mat sat. Hatte\u00E9 n\u00E9e ",
                                         support::tricky_text(seed, 40))}}
                 .dump()
          << "\n";
    return {.type = type, .vocab_size = vocab_size, .specials = {}};
  }
  std::map<std::string, std::string> train(const TrainerOptions& options) {
    std::map<std::string, std::string> files;
    for (const TrainedFile& file : data::train_tokenizer(*fs, text, options).files) files[file.name] = file.text;
    return files;
  }
  /// As make_tokenizer() reads them.
  std::shared_ptr<const Tokenizer> open(const std::string& name, const std::map<std::string, std::string>& files,
                                        const std::vector<std::string>& which) {
    const TempDir vocabulary;
    for (const std::string& file : which) write_all(vocabulary / file, files.at(file));
    return make_tokenizer(name, vocabulary.path(), *fs);
  }
  std::shared_ptr<io::Fs> fs = io::posix_fs();
  TempDir dir;
  data::TrainingText text{.inputs = {dir / "text.jsonl"}};
};

TEST_F(TokenizerTrainer, BpeFilesAreOneTokenizer) {
  TrainerOptions asked = options(TokenizerType::bpe, 320);
  asked.specials = {"<pad>"};
  const auto files = train(asked);
  EXPECT_EQ(files.size(), 3u);
  const auto whole = open("bpe", files, {"tokenizer.json"});
  const auto two = open("bpe", files, {"vocab.json", "merges.txt"});
  EXPECT_EQ(whole->vocab_size(), 320);
  EXPECT_EQ(whole->end_of_document(), 0);
  EXPECT_EQ(whole->special(Special::pad), 1);
  EXPECT_EQ(whole->token_bytes(2), "!") << "bytes in the order of their characters";
  const std::string shown = "The hats' mat 12\n" + support::tricky_text(999, 200);
  EXPECT_EQ(whole->decode(whole->encode(shown)), shown);
  EXPECT_LT(whole->encode("the cat").size(), 5u);
  EXPECT_EQ(nlohmann::json::parse(files.at("vocab.json")).size(), 320u);
  EXPECT_EQ(two->encode("the cat"), whole->encode("the cat"));
}

TEST_F(TokenizerTrainer, SameFilesForAnyThreadsAndMemoryThatIsEnough) {
  for (const TokenizerType type : {TokenizerType::bpe, TokenizerType::wordpiece}) {
    TrainerOptions asked = options(type, 400);
    text.threads = 1;
    text.reading.block_bytes = 1000;
    const auto one = train(asked);
    text.threads = 8;
    EXPECT_EQ(train(asked), one);
    asked.memory_bytes = std::uint64_t{16} << 20;
    EXPECT_EQ(train(asked), one);
    text.reading.block_bytes = 100000;
    EXPECT_EQ(train(asked), one) << "where blocks end does not matter";
  }
}

TEST_F(TokenizerTrainer, WordPieceFilesAreOneTokenizer) {
  for (const bool lowercase : {true, false}) {
    TrainerOptions asked = options(TokenizerType::wordpiece, 300);
    asked.lowercase = lowercase;
    asked.specials = {"[unused0]"};
    const auto files = train(asked);
    const std::string name = lowercase ? "bert-uncased" : "bert-cased";
    const auto whole = open(name, files, {"tokenizer.json"}), lines = open(name, files, {"vocab.txt"});
    EXPECT_EQ(whole->content_hash(), lines->content_hash());
    EXPECT_TRUE(files.at("vocab.txt").starts_with("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n[unused0]\n"));
    EXPECT_LE(whole->vocab_size(), 300);
    EXPECT_EQ(whole->decode(whole->encode("hats sat")), "hats sat");
    EXPECT_EQ(whole->encode("The") == whole->encode("the"), lowercase);
  }
}

TEST_F(TokenizerTrainer, OnlyCharactersWithinWordsContinueWords) {
  WordCounts words;
  words.add("ab", 3);
  words.add("xa", 2);
  words.add(",", 9);
  EXPECT_EQ(learn_wordpiece(words, {"[UNK]"}, {.vocab_size = 100, .min_frequency = 2, .join = {}}),
            (std::vector<std::string>{"[UNK]", ",", "a", "b", "x", "##a", "##b", "ab", "xa"}));
}

// The rule of the tokenizers library: what stands after a character without a token still continues the word.
TEST_F(TokenizerTrainer, AWordThatBeginsWithADroppedCharacterHasNoBeginning) {
  WordCounts words;
  words.add("xab", 3);
  words.add("ba", 2);
  // Room for two characters: x, the rarest, goes.
  const std::vector<std::string> tokens =
      learn_wordpiece(words, {"[UNK]", "[PAD]"}, {.vocab_size = 7, .min_frequency = 2, .join = {}});
  EXPECT_EQ(tokens, (std::vector<std::string>{"[UNK]", "[PAD]", "a", "b", "##a", "##b", "##ab"}));
}

TEST_F(TokenizerTrainer, StopsAtTheLeastFrequency) {
  TrainerOptions asked = options(TokenizerType::bpe, 100000);
  asked.min_frequency = 50;
  const TrainedTokenizer trained = data::train_tokenizer(*fs, text, asked);
  EXPECT_LT(trained.report.tokens, 2000);
  EXPECT_GT(trained.report.merges, 10u);
  EXPECT_EQ(trained.report.documents, 200u);
}

TEST_F(TokenizerTrainer, RefusesBadSettings) {
  const auto error = [&](auto change) {
    TrainerOptions asked = options(TokenizerType::bpe, 300);
    change(asked);
    return error_of<ConfigError>([&] { data::train_tokenizer(*fs, text, asked); });
  };
  const auto has = [](const std::string& message, std::string_view part) {
    return message.find(part) != std::string::npos;
  };
  EXPECT_TRUE(has(error([](TrainerOptions& o) { o.vocab_size = 256; }), "--vocab-size = 256: must be 257 to "));
  EXPECT_TRUE(has(error([](TrainerOptions& o) { o.lowercase = true; }), "--lowercase = true: is of wordpiece"));
  EXPECT_TRUE(has(error([](TrainerOptions& o) { o.memory_bytes = 1000; }), "--memory = 1000: must be at least 16 MiB"));
  EXPECT_TRUE(has(error([](TrainerOptions& o) { o.specials = {"a", "a"}; }), "--special = a: is there twice"));
  EXPECT_TRUE(has(error([](TrainerOptions& o) { o.specials = {"a\nb"}; }), "must be a line of UTF-8 text"));
  EXPECT_EQ(error([](TrainerOptions&) {}), "");
  text = {.inputs = {}, .threads = 0};
  EXPECT_TRUE(has(error([](TrainerOptions&) {}), "--input"));
  EXPECT_TRUE(has(error([](TrainerOptions&) {}), "--threads = 0: must be at least 1"));
  EXPECT_EQ(error_of<ConfigError>([] { tokenizer_type_named("wordpeice"); }),
            "--type wordpeice: must be bpe, wordpiece, sentencepiece-unigram or sentencepiece-bpe; did you mean "
            "wordpiece?");
}

TEST_F(TokenizerTrainer, NamesTheLineThatIsBad) {
  TrainerOptions asked = options(TokenizerType::bpe, 300);
  write_all(dir / "text.jsonl", "{\"text\": \"a\"}\n{\"txt\": 1}\n");
  EXPECT_NE(error_of<InputError>([&] { data::train_tokenizer(*fs, text, asked); }).find("text.jsonl] line 2"),
            std::string::npos);
  write_all(dir / "text.jsonl", "\n");
  EXPECT_NE(
      error_of<InputError>([&] { data::train_tokenizer(*fs, text, asked); }).find("there is nothing to learn from"),
      std::string::npos);
}

/// Skips where the program has no sentencepiece.
class SentencePieceTest : public TokenizerTrainer {
 protected:
  void SetUp() override {
    try {
      load_sentencepiece(*fs, dir.path());
    } catch (const ConfigError& error) {
      GTEST_SKIP() << error.what();
    } catch (const InputError&) {  // the library is there, a model is not
    }
  }
};

TEST_F(SentencePieceTest, TrainsAndReadsModels) {
  for (const TokenizerType type : {TokenizerType::sentencepiece_unigram, TokenizerType::sentencepiece_bpe}) {
    TrainerOptions asked = options(type, 330);
    text.threads = 1;
    asked.specials = {"[MASK]"};
    const auto files = train(asked);
    const auto tokenizer = open("sentencepiece", files, {"tokenizer.model"});
    EXPECT_EQ(tokenizer->vocab_size(), 330);
    EXPECT_EQ(tokenizer->special(Special::unk), 0);
    EXPECT_EQ(tokenizer->special(Special::cls), 1);
    EXPECT_EQ(tokenizer->end_of_document(), 2);
    EXPECT_EQ(tokenizer->special(Special::pad), 3);
    EXPECT_EQ(tokenizer->special(Special::mask), 4);
    const std::string shown = "the cat's hat \U0001F600 \u65E5";
    const std::vector<std::int32_t> ids = tokenizer->encode(shown);
    EXPECT_EQ(tokenizer->decode(ids), shown) << "characters that it has not seen come back from bytes";
    EXPECT_TRUE(tokenizer->starts_word(ids[0]));
    EXPECT_EQ(tokenizer->next_cut("a b c", 0), 5u);
    text.threads = 3;
    EXPECT_EQ(train(asked), files);
  }
}

TEST_F(SentencePieceTest, RefusesWhatIsNoModel) {
  const auto error = [&] { return error_of<InputError>([&] { load_sentencepiece(*fs, dir.path()); }); };
  EXPECT_NE(error().find("has no *.model"), std::string::npos);
  const auto files = train(options(TokenizerType::sentencepiece_bpe, 330));
  write_all(dir / "a.model", files.at("tokenizer.model").substr(0, files.at("tokenizer.model").size() / 2));
  EXPECT_NE(error().find("a.model] must be a sentencepiece model"), std::string::npos);
  write_all(dir / "b.model", "");
  EXPECT_NE(error().find("has more than one *.model"), std::string::npos);
}

}  // namespace
}  // namespace megalith::tokenizer
