#include "megalith/tokenizer/wordpiece.h"

#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tokenizer/vocabulary_files.h"

#include "tests/io/temp_dir.h"
#include "tests/support/random_text.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tokenizer {
namespace {

using WordPieceIds = std::vector<std::int32_t>;

const Tokenizer& bert(const std::string& name) {
  const auto load = [](const std::string& which) {
    return make_tokenizer(which, io::Path(MEGALITH_TEST_DATA) / "../../share" / which, *io::posix_fs());
  };
  static const auto uncased = load("bert-uncased"), cased = load("bert-cased");
  return name == "bert-cased" ? *cased : *uncased;
}

/// A vocab.txt with the special tokens of BERT and `more`, one per line.
std::string small_vocab(const std::string& more) { return "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n" + more; }

std::shared_ptr<const Tokenizer> from_vocab(const std::string& name, const std::string& vocab) {
  const TempDir dir;
  io::write_file(*io::posix_fs(), dir / "vocab.txt", vocab);
  return make_tokenizer(name, dir.path(), *io::posix_fs());
}

TEST(WordPiece, EncodesAllCases) {
  std::ifstream file(MEGALITH_TEST_DATA "/bert/wordpiece_cases.jsonl");
  int cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    const nlohmann::json test = nlohmann::json::parse(line);
    const std::string text = test["text"];
    EXPECT_EQ(bert("bert-uncased").encode(text), test["ids"].get<WordPieceIds>()) << test["kind"] << ": " << text;
  }
  EXPECT_EQ(cases, 100);
}

TEST(WordPiece, KnowsItsVocabulary) {
  const Tokenizer& uncased = bert("bert-uncased");
  EXPECT_EQ(uncased.vocab_size(), 30522);
  EXPECT_EQ(uncased.special(Special::pad), 0);
  EXPECT_EQ(uncased.special(Special::unk), 100);
  EXPECT_EQ(uncased.special(Special::cls), 101);
  EXPECT_EQ(uncased.special(Special::sep), 102);
  EXPECT_EQ(uncased.special(Special::mask), 103);
  EXPECT_EQ(uncased.end_of_document(), 102);
  EXPECT_EQ(bert("bert-cased").vocab_size(), 28996);
  EXPECT_NE(bert("bert-cased").content_hash(), uncased.content_hash());
  EXPECT_EQ(gpt2()->special(Special::mask), std::nullopt);
}

TEST(WordPiece, TellsWhereWordsBegin) {
  const Tokenizer& uncased = bert("bert-uncased");
  const WordPieceIds ids = uncased.encode("Unaffable, embeddings");
  std::vector<bool> begins;
  for (const std::int32_t id : ids) begins.push_back(uncased.starts_word(id));
  EXPECT_EQ(ids, (WordPieceIds{14477, 20961, 3468, 1010, 7861, 8270, 4667, 2015}));  // un ##aff ##able , em ##bed ...
  EXPECT_EQ(begins, (std::vector<bool>{true, false, false, true, true, false, false, false}));
  EXPECT_EQ(uncased.decode(ids), "unaffable , embeddings");
  EXPECT_TRUE(uncased.starts_word(103));
  const WordPieceIds words = gpt2()->encode("un affable");
  EXPECT_FALSE(gpt2()->starts_word(words[0]));
  EXPECT_TRUE(gpt2()->starts_word(words[1]));
}

TEST(WordPiece, CasedKeepsCaseAndAccents) {
  const auto cased = from_vocab("bert-cased", small_vocab("a\n##b\nB\n\xC3\xA9\n"));
  EXPECT_EQ(cased->encode("ab B \xC3\xA9 A"), (WordPieceIds{5, 6, 7, 8, 1}));
  const auto uncased = from_vocab("bert-uncased", small_vocab("a\n##b\nb\ne\n"));
  EXPECT_EQ(uncased->encode("AB B \xC3\x89 e\xCC\x81"), (WordPieceIds{5, 6, 7, 8, 8}));
}

TEST(WordPiece, WordOfOver100CharactersIsUnknown) {
  const auto tokenizer = from_vocab("bert-cased", small_vocab("\xC3\xA9\n##\xC3\xA9\n"));
  const auto word = [](int characters) {
    std::string text;
    for (int i = 0; i < characters; ++i) text += "\xC3\xA9";
    return text;
  };
  EXPECT_EQ(tokenizer->encode(word(100)).size(), 100u);
  EXPECT_EQ(tokenizer->encode(word(101)), WordPieceIds{1});
  EXPECT_EQ(tokenizer->encode(word(3) + "x"), WordPieceIds{1}) << "what no pieces make is unknown as a whole";
}

TEST(WordPiece, TakesNoSpecialTokenFromText) {
  EXPECT_EQ(bert("bert-uncased").encode("[MASK]"), (WordPieceIds{1031, 7308, 1033}));
}

TEST(WordPiece, NextCutChangesNoIds) {
  for (const char* name : {"bert-uncased", "bert-cased"}) {
    const Tokenizer& tokenizer = bert(name);
    for (std::uint64_t seed = 0; seed < 30; ++seed) {
      const std::string text = support::tricky_text(seed, 60) + "\v\f" + support::any_text(seed, 60);
      const WordPieceIds whole = tokenizer.encode(text);
      for (std::size_t from = 0; from < text.size(); from += 7) {
        const std::size_t cut = tokenizer.next_cut(text, from);
        ASSERT_GE(cut, std::max<std::size_t>(from, 1));
        WordPieceIds parts = tokenizer.encode(text.substr(0, cut));
        for (const std::int32_t id : tokenizer.encode(text.substr(cut))) parts.push_back(id);
        ASSERT_EQ(parts, whole) << "seed " << seed << ", cut at " << cut;
      }
    }
  }
}

TEST(WordPiece, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(error_of<EncodeError>([] { bert("bert-uncased").encode("ab\xFF"); }),
            "[bert-uncased tokenizer] byte 2 of the text must be UTF-8");
}

TEST(WordPiece, RefusesBrokenVocabularies) {
  const auto error = [](const std::string& vocab) {
    const std::string text = error_of<InputError>([&] { from_vocab("bert-uncased", vocab); });
    const std::size_t end = text.find("] ");
    return end == std::string::npos ? text : text.substr(end + 2);
  };
  EXPECT_EQ(error(small_vocab("a\nb\na\n")), "line 8, token \"a\": is on line 6 too");
  EXPECT_EQ(error("[CLS]\n[SEP]\na\n"), "token [UNK] is missing: words of no tokens get it");
  EXPECT_EQ(error("[UNK]\na\n"), "token [SEP] is missing: documents end with it");
  EXPECT_EQ(error(small_vocab("a\n\nb\n")), "line 7, must hold a token");
  EXPECT_EQ(error(small_vocab("a\xFF\n")), "line 6, must be UTF-8");
  EXPECT_EQ(error(""), "token [UNK] is missing: words of no tokens get it");
  const TempDir empty;
  EXPECT_NE(error_of<InputError>([&] {
              make_tokenizer("bert-cased", empty.path(), *io::posix_fs());
            }).find("has no vocab.txt or tokenizer.json"),
            std::string::npos);
}

nlohmann::ordered_json wordpiece_file() {
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 0}, {"content", "[UNK]"}, {"special", true}}}},
          {"normalizer", {{"type", "BertNormalizer"}, {"strip_accents", nullptr}, {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", {{"type", "BertProcessing"}, {"sep", {"[SEP]", 1}}, {"cls", {"[CLS]", 2}}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 4},
            {"vocab", {{"[UNK]", 0}, {"[SEP]", 1}, {"e", 2}, {"##e", 3}}}}}};
}

std::shared_ptr<const Tokenizer> from_json(const std::string& name, const nlohmann::ordered_json& file) {
  const TempDir dir;
  io::write_file(*io::posix_fs(), dir / "tokenizer.json", file.dump());
  return make_tokenizer(name, dir.path(), *io::posix_fs());
}

TEST(WordPiece, ReadsTokenizerJson) {
  EXPECT_EQ(from_json("bert-uncased", wordpiece_file())
                ->encode("E\xCC\x81"
                         "e eeee eeeee"),
            (WordPieceIds{2, 3, 2, 3, 3, 3, 0}));
  auto accents = wordpiece_file();
  accents["normalizer"]["strip_accents"] = false;
  EXPECT_EQ(from_json("bert-uncased", accents)->encode("e\xCC\x81"), WordPieceIds{0});
  auto added = wordpiece_file();
  added["added_tokens"].push_back({{"id", 4}, {"content", "[MASK]"}, {"special", true}});
  EXPECT_EQ(from_json("bert-uncased", added)->special(Special::mask), 4);
}

TEST(WordPiece, RefusesByJsonPath) {
  struct Row {
    const char *pointer, *value, *error;
  };
  constexpr Row kRows[] = {
      {"/model/type", R"("Unigram")", R"(model.type = "Unigram": must be "WordPiece")"},
      {"/normalizer", "null", R"(normalizer.type = null: must be "BertNormalizer")"},
      {"/normalizer/lowercase", "false", "normalizer.lowercase = false: must be true for bert-uncased; use bert-cased"},
      {"/normalizer/clean_text", "3", "normalizer.clean_text = 3: must be true or false"},
      {"/pre_tokenizer/type", R"("Whitespace")", R"(pre_tokenizer.type = "Whitespace": must be "BertPreTokenizer")"},
      {"/truncation", R"({"max_length": 8})",
       R"(truncation = {"max_length":8}: must be null: it cuts the ids of a text off)"},
      {"/model/vocabulary", "{}", "model.vocabulary = {}: this program does not know what it does to ids"},
      {"/normalizer/nfc", "true", "normalizer.nfc = true: this program does not know"},
      {"/pre_tokenizer/behavior", "1", "pre_tokenizer.behavior = 1: this program does not know"},
      {"/post_processor/type", R"("Other")", R"(post_processor.type = "Other": must be ByteLevel, TemplateProcessing)"},
      {"/added_tokens/0/special", "false", R"(added token "[UNK]": must be special)"},
      {"/added_tokens/0/id", "3", "added_tokens[0].id = 3: the vocabulary has this token under 0"},
      {"/model/vocab/e", "3", "\", id = 3: two tokens have this id; ids must be distinct"},
      {"/model/vocab/e", "4000000000", R"(token "e", id = 4000000000: the ids of 4 tokens must be 0 to 3, each once)"},
      {"/model/vocab", "[]", "model.vocab = []: must be an object"},
      {"/model/unk_token", R"("<unk>")", "token <unk> is missing: words of no tokens get it"},
  };
  for (const Row& row : kRows) {
    auto file = wordpiece_file();
    file[nlohmann::ordered_json::json_pointer(row.pointer)] = nlohmann::ordered_json::parse(row.value);
    const std::string error = error_of<InputError>([&] { from_json("bert-uncased", file); });
    EXPECT_NE(error.find(row.error), std::string::npos) << row.pointer << ": " << error;
  }
}

TEST(WordPiece, SavesItsFile) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const TempDir dir;
  io::write_file(*fs, dir / "bert-cased-vocab.txt", small_vocab("a\n"));
  const VocabularyFiles files = read_vocabulary_files(*fs, "bert-cased", dir.path());
  ASSERT_EQ(files->size(), 1u);
  EXPECT_EQ(files->front().name, "vocab.txt");
  EXPECT_EQ(files->front().text, small_vocab("a\n"));
}

}  // namespace
}  // namespace megalith::tokenizer
