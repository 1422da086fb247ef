#include "megalith/data/corpus_builder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/tokenizer/bpe_vocabulary.h"

#include "tests/io/temp_dir.h"
#include "tests/support/compressed.h"
#include "tests/support/random_text.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::data {
namespace {

using Ids = std::vector<std::int32_t>;

class Documents final : public TokenSink {
 public:
  void add(std::span<const std::int32_t> ids) override {
    open.insert(open.end(), ids.begin(), ids.end());
    most = std::max(most, ids.size());
  }
  void end_document() override { ended.push_back(std::exchange(open, {})); }
  std::vector<Ids> ended;
  Ids open;
  std::size_t most = 0;  // ids at a time
};

class CorpusBuilder : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) {
    write_all(dir_ / name, contents);
    return dir_ / name;
  }
  std::vector<Ids> documents(const std::vector<io::Path>& files, const tokenizer::Tokenizer& tokenizer) {
    Documents sink;
    counts_ = tokenize_corpus(*io::posix_fs(), files, tokenizer, options_, sink);
    EXPECT_TRUE(sink.open.empty());
    max_at_a_time_ = sink.most;
    return sink.ended;
  }
  /// The bytes, some merges, and tokens that a text gets wherever it holds them; cut by these patterns.
  std::shared_ptr<const tokenizer::Tokenizer> bpe_cut_by(const std::vector<std::string>& patterns, bool compose) {
    nlohmann::json vocabulary;
    for (int byte = 0; byte < 256; ++byte)
      vocabulary[tokenizer::byte_spelling(static_cast<unsigned char>(byte))] = byte;
    nlohmann::json merges = nlohmann::json::array();
    for (const auto& [left, right] :
         {std::pair{"T", "h"}, {"Th", "e"}, {"i", "n"}, {"in", "g"}, {"\u0120", "a"}, {"\u0120", "\u0120"}}) {
      merges.push_back(str(left, ' ', right));
      const int id = static_cast<int>(vocabulary.size());
      vocabulary[str(left, right)] = id;
    }
    nlohmann::json added = nlohmann::json::array();
    const auto add = [&](const char* content, bool is_special, bool is_normalized) {
      const int id = static_cast<int>(vocabulary.size() + added.size());
      added.push_back({{"id", id}, {"content", content}, {"special", is_special}, {"normalized", is_normalized}});
    };
    add("<|endoftext|>", false, false);
    add("  -", false, false);
    add("ab23", false, false);
    add("\u00E9\u00E9", false, true);
    nlohmann::json steps = nlohmann::json::array();
    for (const std::string& pattern : patterns)
      steps.push_back(
          {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    nlohmann::json json = {{"added_tokens", added},
                           {"normalizer", nullptr},
                           {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
                           {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
    if (compose) json["normalizer"] = {{"type", "NFC"}};
    write_all(dir_ / "tokenizer.json", json.dump());
    return tokenizer::make_tokenizer("bpe", dir_.path(), *io::posix_fs());
  }
  /// The error without the folder's name.
  std::string error(const std::vector<io::Path>& files, const tokenizer::Tokenizer& tokenizer) {
    std::string text = error_of<InputError>([&] { documents(files, tokenizer); });
    const std::string folder = dir_.path().string() + "/";
    for (std::size_t at; (at = text.find(folder)) != std::string::npos;) text.erase(at, folder.size());
    return text;
  }

  TempDir dir_;
  CorpusOptions options_;
  CorpusCounts counts_;
  std::size_t max_at_a_time_ = 0;
};

Ids byte_ids(std::string_view text) { return tokenizer::bytes()->encode(text); }

Ids with_end(Ids ids) {
  ids.push_back(0);
  return ids;
}

TEST_F(CorpusBuilder, TextIsOneDocumentAFile) {
  EXPECT_EQ(documents({file("a.txt", "one\n"), file("empty.txt", ""), file("b", "two")}, *tokenizer::bytes()),
            (std::vector<Ids>{with_end(byte_ids("one\n")), with_end(byte_ids("two"))}));
  EXPECT_EQ(counts_.documents, 2);
  EXPECT_EQ(counts_.tokens, 9);
  EXPECT_EQ(counts_.bytes, 7);
  EXPECT_EQ(counts_.total_bytes, 7);
}

TEST_F(CorpusBuilder, SentencesAreSequences) {
  options_.sequences = Sequences::sentences;
  options_.end_of_document = EndOfDocument::omit;
  std::string text = "One. Two!\n\n \"Three?\" Mr. Four.";
  for (int i = 0; i < 500; ++i) text += str(" Sentence ", i, " of many.");
  const auto lines = file("a.jsonl", "{\"text\": \"A b. C\"}\n{\"text\": \" \"}\n{\"text\": \"D\"}\n");
  const auto whole = file("b.txt", text);
  std::string first;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();  // outlives the builder
  for (const Index block : {100, 1 << 20}) {
    options_.reading.block_bytes = block;
    options_.threads = block == 100 ? 3 : 1;
    const io::Path prefix = dir_ / str("out", block);
    IndexedDatasetBuilder builder(*fs, prefix, {.vocab_size = 256});
    const CorpusCounts counts = build_corpus(*fs, {lines, whole}, *tokenizer::bytes(), options_, builder);
    EXPECT_EQ(counts.documents, 3);
    EXPECT_EQ(counts.empty_documents, 1);
    EXPECT_EQ(counts.sequences, 2 + 1 + 4 + 500);
    ASSERT_EQ(counts.files.size(), 2u);
    EXPECT_EQ(counts.files[0].documents, 2);
    EXPECT_EQ(counts.files[0].empty_documents, 1);
    EXPECT_EQ(counts.files[0].tokens, 6);
    EXPECT_EQ(counts.files[1].text_bytes, static_cast<Index>(text.size()));
    const IndexedDataset dataset(*fs, prefix);
    EXPECT_EQ(dataset.num_documents(), 3);
    EXPECT_EQ(dataset.document_begin(1), 2);
    EXPECT_EQ(dataset.num_sequences(), counts.sequences);
    EXPECT_EQ(dataset.sequence_length(0), 4) << "A b.";
    EXPECT_EQ(dataset.sequence_length(1), 1) << "C";
    EXPECT_EQ(dataset.sequence_length(5), 8) << "\"Three?\"";
    const std::string files = read_all(bin_path(prefix)) + read_all(idx_path(prefix));
    if (first.empty()) first = files;
    EXPECT_EQ(files, first);
  }
}

TEST_F(CorpusBuilder, SeparatorLinesDivideText) {
  options_.reading.split_on = "<|end|>";
  const auto a = file("a.txt", "<|end|>\none\n<|end|>\r\ntwo <|end|>\nmore\n<|end|>\n<|end|>\nthree <|end|>x\n<|end|>");
  for (const Index block : {1, 3, 1000}) {
    options_.reading.block_bytes = block;
    EXPECT_EQ(documents({a}, *tokenizer::bytes()),
              (std::vector<Ids>{with_end(byte_ids("one\n")), with_end(byte_ids("two <|end|>\nmore\n")),
                                with_end(byte_ids("three <|end|>x\n"))}))
        << block;
    EXPECT_EQ(counts_.empty_documents, 2);
    EXPECT_EQ(counts_.bytes, counts_.total_bytes);
  }
}

// Larger than what is in sight at once, and compressed, so that nothing after it is known.
TEST_F(CorpusBuilder, SeparatorsAreFoundAcrossWindows) {
  options_.reading.split_on = "<|end|>";
  std::string text;
  std::vector<Ids> want;
  for (int i = 0; text.size() < (std::size_t{4} << 20); ++i) {
    std::string document = support::tricky_text(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(i) % 3000);
    std::erase(document, '\0');
    document += i % 7 == 0 ? " <|end|>\n" : "x\n";
    text += document + "<|end|>\n";
    want.push_back(with_end(byte_ids(document)));
  }
  const auto plain = file("a.txt", text), packed = file("a.txt.zst", support::zstd(text));
  for (const Index block : {1000, 100000, 1 << 20, 1 << 22}) {
    options_.reading.block_bytes = block;
    EXPECT_TRUE(documents({plain}, *tokenizer::bytes()) == want) << block;
    EXPECT_TRUE(documents({packed}, *tokenizer::bytes()) == want) << block;
    EXPECT_EQ(counts_.bytes, counts_.total_bytes);
  }
}

TEST_F(CorpusBuilder, CompressedFilesGiveWhatPlainOnesGive) {
  const std::string text = support::any_text(3, 100000);
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += str("{\"text\": \"line ", i, "\"}\n");
  const std::vector<Ids> want_text = documents({file("a.txt", text)}, *tokenizer::gpt2()),
                         want_lines = documents({file("a.jsonl", lines)}, *tokenizer::gpt2());
  EXPECT_EQ(documents({file("b.txt.gz", support::gzip(text))}, *tokenizer::gpt2()), want_text);
  EXPECT_EQ(documents({file("b.txt.xz", support::xz(text))}, *tokenizer::gpt2()), want_text);
  EXPECT_EQ(documents({file("b.jsonl.zst", support::zstd(lines))}, *tokenizer::gpt2()), want_lines);
  EXPECT_EQ(documents({file("b.ndjson.gz", support::gzip(lines))}, *tokenizer::gpt2()), want_lines);
  EXPECT_NE(
      error({file("c.jsonl.gz", support::gzip(lines).substr(0, 3000))}, *tokenizer::gpt2()).find("the file is cut"),
      std::string::npos);
}

TEST_F(CorpusBuilder, JsonLines) {
  options_.end_of_document = EndOfDocument::omit;
  const auto a = file("a.jsonl",
                      "{\"text\": \"one\", \"n\": [1, {\"text\": 2}]}\n\n  \r\n{\"m\":{\"text\":\"x\"},\"text\":\"\"}\n"
                      "{\"text\": \"caf\\u00e9 \\ud83d\\ude00\"}\r\n{\"text\":\"no line end\"}");
  EXPECT_EQ(documents({a}, *tokenizer::bytes()),
            (std::vector<Ids>{byte_ids("one"), byte_ids("caf\u00e9 \U0001F600"), byte_ids("no line end")}));
  EXPECT_EQ(counts_.empty_documents, 1);
  options_.key = "m";
  EXPECT_EQ(documents({file("b.json", "{\"m\": \"x\"}")}, *tokenizer::bytes()).front(), byte_ids("{\"m\": \"x\"}"))
      << "by name: text";
  options_.reading.format = CorpusFormat::json_lines;
  EXPECT_EQ(documents({dir_ / "b.json"}, *tokenizer::bytes()).front(), byte_ids("x"));
}

TEST_F(CorpusBuilder, JsonErrorsNameFileAndLine) {
  const std::string good = "{\"text\": \"fine\"}\n";
  EXPECT_EQ(
      error({file("a.jsonl", good + "{\"text\": \"cut")}, *tokenizer::bytes()),
      "[a.jsonl] line 2, column 13, not valid JSON: syntax error while parsing value - invalid string: missing closing "
      "quote; last "
      "read: '\"cut'");
  EXPECT_EQ(error({file("a.jsonl", good + good + "{\"txt\": \"x\"}\n")}, *tokenizer::bytes()),
            "[a.jsonl] line 3, key \"text\": is missing; did you mean txt? --key, or data.key of a recipe, names the "
            "one that holds the text");
  EXPECT_EQ(error({file("a.jsonl", "{\"text\": 1}\n")}, *tokenizer::bytes()),
            "[a.jsonl] line 1, key \"text\": must be a string");
  EXPECT_EQ(error({file("a.jsonl", "{\"text\": [\"a\"]}\n")}, *tokenizer::bytes()),
            "[a.jsonl] line 1, key \"text\": must be a string");
  EXPECT_EQ(error({file("a.jsonl", "{\"text\": \"a\", \"text\": \"b\"}\n")}, *tokenizer::bytes()),
            "[a.jsonl] line 1, column 20, key \"text\" is there twice");
  EXPECT_EQ(error({file("a.jsonl", "\"text\"\n")}, *tokenizer::bytes()),
            "[a.jsonl] line 1, JSON value: must be an object, {\"key\": ...}");
  EXPECT_EQ(error({file("a.jsonl", good + std::string("{\"text\": \"a\"}\0\n", 15))}, *tokenizer::bytes()),
            "[a.jsonl] line 2, column 14, not valid JSON: a zero byte");
  EXPECT_NE(
      error({file("a.jsonl", "{\"text\": \"a\"} {}\n")}, *tokenizer::bytes()).find("line 1, column 15, not valid JSON"),
      std::string::npos);
  EXPECT_EQ(error({file("a.jsonl", "{\"deep\": " + std::string(100'000, '['))}, *tokenizer::bytes()),
            "[a.jsonl] line 1, column 73, nested deeper than 64");
  EXPECT_EQ(error({file("a.jsonl", "{\"text\": \"\\u0000\"}\n")}, *tokenizer::bytes()),
            "[a.jsonl] line 1, byte 0 of the text is token 0, which ends a document: remove it, or append no end of "
            "document");
}

TEST_F(CorpusBuilder, TextErrorsNameTheByte) {
  options_.reading.block_bytes = 4;
  EXPECT_EQ(error({file("a.txt", "good good good \xFF")}, *tokenizer::gpt2()), "[a.txt] byte 15 must be UTF-8");
  EXPECT_EQ(error({file("a.txt", std::string("good good\0", 10))}, *tokenizer::bytes()),
            "[a.txt] byte 9 is token 0, which ends a document: remove it, or append no end of document");
  EXPECT_EQ(error({dir_ / "b.txt"}, *tokenizer::bytes()), "[input] b.txt: there is no such file; did you mean a.txt?");
  EXPECT_EQ(error({dir_ / "no/b.txt"}, *tokenizer::bytes()), "[input] no/b.txt: there is no folder no");
  options_.end_of_document = EndOfDocument::omit;
  EXPECT_EQ(documents({dir_ / "a.txt"}, *tokenizer::bytes()).front().size(), 10u);
}

TEST_F(CorpusBuilder, NothingToBuildIsAnError) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const auto build = [&](const std::vector<io::Path>& inputs) {
    IndexedDatasetBuilder builder(*fs, dir_ / "none", {.vocab_size = 256});
    build_corpus(*fs, inputs, *tokenizer::bytes(), options_, builder);
  };
  EXPECT_EQ(error_of<InputError>([&] { build({file("a.jsonl", "\n\n{\"text\": \"\"}\n")}); }),
            "[input] no text in 15 bytes of 1 file: nothing was built");
  EXPECT_EQ(error_of<InputError>([&] {
              build({file("a.txt", ""), file("b.txt", "")});
            }),
            "[input] no text in 0 bytes of 2 files: nothing was built");
  EXPECT_FALSE(fs->exists(bin_path(dir_ / "none")) || fs->exists(idx_path(dir_ / "none")));
}

TEST_F(CorpusBuilder, InvalidUtf8CanBeReplaced) {
  options_.invalid_utf8 = InvalidUtf8::replace;
  options_.end_of_document = EndOfDocument::omit;
  const Ids want = tokenizer::gpt2()->encode("good \uFFFD text");
  EXPECT_EQ(documents({file("a.txt", "good \xFF text")}, *tokenizer::gpt2()).front(), want);
  EXPECT_EQ(documents({file("a.jsonl", "{\"text\": \"good \xFF text\"}")}, *tokenizer::gpt2()).front(), want);
}

TEST_F(CorpusBuilder, ReplacingDoesNotDependOnTheBlocks) {
  options_.invalid_utf8 = InvalidUtf8::replace;
  options_.end_of_document = EndOfDocument::omit;
  std::string text = support::any_text(8, 300);
  for (const std::size_t place : {0, 77, 400}) text[place] = '\xFF';
  options_.reading.block_bytes = 1 << 20;
  const auto a = file("a.txt", text);
  for (const auto& tokenizer : {tokenizer::gpt2(), tokenizer::bytes()}) {
    const std::vector<Ids> whole = documents({a}, *tokenizer);
    options_.reading.block_bytes = 1;
    EXPECT_EQ(documents({a}, *tokenizer), whole) << tokenizer->name();
    options_.reading.block_bytes = 1 << 20;
  }
}

TEST_F(CorpusBuilder, ALineOfTextIsAsLongAsAllowed) {
  const std::string line(1000, 'a');
  for (const Index block : {Index{1} << 20, Index{64}})
    for (const std::size_t before : {std::size_t{0}, (std::size_t{1} << 20) - 600, std::size_t{1} << 20}) {
      options_.reading.block_bytes = block;
      const std::string front = before == 0 ? "" : std::string(before - 1, '\n') + "\n";
      for (const std::string& rest : {std::string(), std::string("\n"), "\nb\n" + std::string(2 << 20, '\n')}) {
        const auto a = file("a.txt", front + line + rest);
        options_.reading.max_line_bytes = 1000;
        EXPECT_EQ(error({a}, *tokenizer::bytes()), "") << block << " " << before;
        options_.reading.max_line_bytes = 999;
        EXPECT_EQ(error({a}, *tokenizer::bytes()),
                  str("[a.txt] the line that begins at byte ", before,
                      " has over 999 bytes, the most that a line may have; --max-line, or data.max_line of a recipe, "
                      "raises that"))
            << block << " " << before;
      }
    }
}

TEST_F(CorpusBuilder, AStretchThatCannotBeCutIsAsLongAsAllowed) {
  // Line ends between two words are one piece of GPT-2's pattern, and none of the lines is long.
  options_.reading.block_bytes = 1000;
  const auto a = file("a.txt", "one" + std::string(5 << 20, '\n') + "two");
  EXPECT_EQ(error({a}, *tokenizer::gpt2()), "");
  options_.reading.max_line_bytes = 2 << 20;
  const std::string cannot =
      " bytes of the text, the most that it may take at once; --max-line, or data.max_line of "
      "a recipe, raises that";
  EXPECT_EQ(error({a}, *tokenizer::gpt2()),
            str("[a.txt] byte 1000: the tokenizer cannot cut the next ", 2 << 20, cannot));
  const auto own = bpe_cut_by({R"(\w+|\s+)"}, false);
  ASSERT_NE(own->make_cutter(), nullptr);
  const std::string text = error({a}, *own);
  EXPECT_NE(text.find(str("comes after over ", 2 << 20, " bytes that the tokenizer cannot cut")), std::string::npos)
      << text;
  options_.reading.max_line_bytes = 6 << 20;
  EXPECT_EQ(error({a}, *own), "");
}

TEST_F(CorpusBuilder, AnOwnPatternIsCutInParts) {
  options_.reading.split_on = "<|end|>";
  std::string text;
  std::vector<std::string> parts;
  for (std::uint64_t i = 0; i < 6; ++i) {
    parts.push_back(support::tricky_text(i, i == 5 ? 3000 : 20 * i) + "e\u0301\u00E9 " + support::any_text(i, 10 * i) +
                    "e\u0301" + (i % 2 == 0 ? "e\u0301" : "  -") + "\n");
    text += parts.back() + "<|end|>\n";
  }
  const auto a = file("a.txt", text);
  for (const std::vector<std::string>& patterns :
       {std::vector<std::string>{R"(\b|^\s+|(?<=\w)\s+$|\s+)"}, {R"(\p{N}{1,3})", R"( ?\w+|\s+(?!\S)|\s+)"}})
    for (const bool compose : {false, true}) {
      const auto tokenizer = bpe_cut_by(patterns, compose);
      ASSERT_NE(tokenizer->make_cutter(), nullptr);
      std::vector<Ids> want;
      for (const std::string& part : parts) {
        want.push_back(tokenizer->encode(part));
        want.back().push_back(tokenizer->end_of_document());
      }
      for (const Index block : {1, 3, 7, 64, 1 << 20})
        for (const int threads : {1, 3}) {
          options_.reading.block_bytes = block;
          options_.threads = threads;
          ASSERT_EQ(documents({a}, *tokenizer), want) << patterns[0] << ", blocks of " << block;
          EXPECT_EQ(counts_.bytes, counts_.total_bytes);
          EXPECT_EQ(counts_.files[0].text_bytes, static_cast<Index>(text.size() - 6 * std::string("<|end|>\n").size()));
          if (block == 64) {
            EXPECT_LT(max_at_a_time_, 4u * 64) << "the last document has 8,000 bytes";
          }
        }
    }
}

TEST_F(CorpusBuilder, ErrorsOfTextThatIsCutInPartsNameTheByte) {
  const auto tokenizer = bpe_cut_by({R"(\w+|\s+)"}, false);
  options_.reading.block_bytes = 4;
  EXPECT_EQ(error({file("a.txt", "good good \u00E9 \xFF")}, *tokenizer), "[a.txt] byte 13 must be UTF-8");
  EXPECT_EQ(error({file("a.txt", "good good \u00E9 \xE6\x97")}, *tokenizer), "[a.txt] byte 13 must be UTF-8");
  options_.reading.split_on = "--";
  EXPECT_EQ(error({file("a.txt", "one\n--\ngood good \u00E9 <|endoftext|>")}, *tokenizer),
            str("[a.txt] byte 20 is token ", tokenizer->end_of_document(),
                ", which ends a document: remove it, or append no end of document"));
  options_.reading.split_on = "";
  std::string text = support::any_text(8, 300);
  for (const std::size_t place : {0, 77, 78, 79, 80, 81, 400}) text[place] = place < 81 ? '\x80' : '\xE6';
  const auto a = file("b.txt", text);
  options_.invalid_utf8 = InvalidUtf8::replace;
  Ids want = tokenizer->encode(repair_utf8(text));
  want.push_back(tokenizer->end_of_document());
  for (const Index block : {1, 2, 3, 5}) {
    options_.reading.block_bytes = block;
    EXPECT_EQ(documents({a}, *tokenizer).front(), want) << block;
  }
}

std::string read_pair(const io::Path& prefix) { return read_all(bin_path(prefix)) + read_all(idx_path(prefix)); }

TEST_F(CorpusBuilder, SameFilesForAnyNumberOfThreadsAndAnyBlock) {
  std::string json;
  std::vector<Ids> want;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const std::string text = support::tricky_text(i, 1 + 37 * (i % 13));
    json += nlohmann::json{{"text", text}}.dump() + "\n";
    want.push_back(tokenizer::gpt2()->encode(text));
    want.back().push_back(50256);
  }
  const std::string prose = support::tricky_text(1000, 20000);
  want.push_back(tokenizer::gpt2()->encode(prose));
  want.back().push_back(50256);
  const std::vector<io::Path> files = {file("a.jsonl", json), file("b.txt", prose)};

  const auto fs = io::posix_fs();
  std::string first;
  for (const int threads : {1, 2, 5}) {
    for (const Index block : {1, 100, 1 << 20}) {
      options_.threads = threads;
      options_.reading.block_bytes = block;
      ASSERT_EQ(documents(files, *tokenizer::gpt2()), want) << threads << " threads, blocks of " << block;
      const io::Path prefix = dir_ / str("out-", threads, "-", block);
      IndexedDatasetBuilder builder(*fs, prefix, {.vocab_size = tokenizer::gpt2()->vocab_size()});
      build_corpus(*fs, files, *tokenizer::gpt2(), options_, builder);
      if (first.empty()) first = read_pair(prefix);
      EXPECT_EQ(read_pair(prefix), first);
    }
  }
}

TEST_F(CorpusBuilder, TheFirstErrorWinsForAnyNumberOfThreads) {
  std::string json;
  for (int line = 1; line <= 300; ++line) json += line % 100 == 0 ? "bad\n" : "{\"text\": \"some words\"}\n";
  const auto a = file("a.jsonl", json);
  options_.reading.block_bytes = 64;
  for (int round = 0; round < 20; ++round) {
    options_.threads = 1 + round % 5;
    const std::string text = error({a}, *tokenizer::gpt2());
    ASSERT_TRUE(text.starts_with("[a.jsonl] line 100, column ")) << text;
  }
}

TEST_F(CorpusBuilder, AFailedBuildLeavesNothing) {
  const auto fs = io::posix_fs();
  const auto a = file("a.jsonl", "{\"text\": \"fine\"}\nbad\n");
  options_.reading.block_bytes = 1;
  EXPECT_THROW(
      {
        IndexedDatasetBuilder builder(*fs, dir_ / "out", {.vocab_size = 256});
        build_corpus(*fs, {a}, *tokenizer::bytes(), options_, builder);
      },
      InputError);
  EXPECT_EQ(fs->list(dir_.path()), std::vector<std::string>{"a.jsonl"});
}

TEST_F(CorpusBuilder, ProgressReachesTheEnd) {
  std::vector<Index> done;
  options_.reading.block_bytes = 10;
  options_.progress = [&](const CorpusCounts& counts) { done.push_back(counts.bytes); };
  documents({file("a.txt", std::string(95, 'x'))}, *tokenizer::bytes());
  ASSERT_EQ(done.size(), 10u);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), 95);
}

}  // namespace
}  // namespace megalith::data
