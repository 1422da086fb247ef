#include "megalith/data/data_config.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/corpus_builder.h"

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::data {
namespace {

std::vector<std::string> problems_of(const DataConfig& config) {
  Problems problems;
  check(config, problems);
  return problems.lines();
}

TEST(DataConfig, ReportsEveryBrokenRule) {
  EXPECT_EQ(problems_of({.tokenizer = "byte", .vocab_dir = "", .train = {"a"}, .valid = {}, .split = "9,1"}),
            std::vector<std::string>{});
  EXPECT_EQ(problems_of({.tokenizer = "byte", .vocab_dir = "", .train = {"a"}, .valid = {"b"}, .split = "x"}),
            (std::vector<std::string>{
                "data.split = \"x\": must not be set together with data.valid; keep one of them",
                "data.split = \"x\": \"x\" must be a number that is not negative; write \"969,30,1\" or \"0.95\""}));
  EXPECT_EQ(problems_of({.tokenizer = "gpt2", .vocab_dir = "", .train = {"a"}, .valid = {}, .split = ""}),
            std::vector<std::string>{})
      << "a vocabulary ships with the program";
}

class OpenCorpus : public testing::Test {
 protected:
  OpenCorpus() {
    write_all(dir_ / "a.txt", "hello");
    write_all(dir_ / "b.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
    const CorpusOptions options;
    IndexedDatasetBuilder builder(*fs_, dir_ / "tokens", {.vocab_size = 256});
    build_corpus(*fs_, {dir_ / "b.jsonl"}, *tokenizer::bytes(), options, builder);
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  TokenSourcePtr open(const std::vector<std::string>& names) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(path(name));
    return open_corpus(*fs_, paths, *tokenizer::bytes(), "data.train");
  }
  std::string text(const TokenSource& source) const {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(source.num_tokens()));
    source.copy(0, ids);
    return tokenizer::bytes()->decode(ids);
  }
  std::string error(const std::string& name) const {
    return error_of<InputError>([&] { open({name}); });
  }

  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  TempDir dir_;
};

TEST_F(OpenCorpus, TakesTextJsonAndTokenFiles) {
  EXPECT_EQ(text(*open({"a.txt"})), std::string("hello\0", 6));
  EXPECT_EQ(text(*open({"b.jsonl"})), std::string("one\0two\0", 8));
  for (const std::string name : {"tokens", "tokens.bin", "tokens.idx"})
    EXPECT_EQ(text(*open({name})), std::string("one\0two\0", 8));
  EXPECT_EQ(text(*open({"tokens", "a.txt", "b.jsonl"})), std::string("one\0two\0hello\0one\0two\0", 22));
}

TEST_F(OpenCorpus, TakesTheTextOfAnotherKey) {
  write_all(dir_ / "c.jsonl", "{\"text\": \"no\", \"body\": \"yes\"}\n");
  const auto open_with = [&](const std::string& key) {
    return open_data(*fs_, {.tokenizer = "byte", .train = {path("c.jsonl")}, .valid = {path("c.jsonl")}, .key = key},
                     *tokenizer::bytes(), 1);
  };
  EXPECT_EQ(text(open_with("body").train.corpora()[0].samples.source()), std::string("yes\0", 4));
  EXPECT_EQ(text(open_with("body").valid->source()), std::string("yes\0", 4));
  EXPECT_EQ(text(open_with("text").train.corpora()[0].samples.source()), std::string("no\0", 3));
  EXPECT_EQ(error_of<InputError>([&] { open_with("bodi"); }),
            str("[", path("c.jsonl"),
                "] line 1, key \"bodi\": is missing; did you mean body?"
                " --key, or data.key of a recipe, names the one that holds the text"));
  EXPECT_EQ(error_of<InputError>([&] { open_with("contents"); }),
            str("[", path("c.jsonl"),
                "] line 1, key \"contents\": is missing; there are text, body;"
                " --key, or data.key of a recipe, names the one that holds the text"));
  EXPECT_EQ(problems_of({.tokenizer = "byte", .train = {"a"}, .key = ""}),
            std::vector<std::string>{
                "data.key = \"\": must name a member of JSON lines or a column; leave it out for \"text\""});
}

TEST_F(OpenCorpus, TakesTheColumnOfAParquetFile) {
  const std::string parquet = (io::Path(MEGALITH_TEST_DATA) / "parquet" / "zstd_v2.parquet").string();
  const auto tokens_of = [&](const std::string& key) {
    return open_data(*fs_, {.tokenizer = "byte", .train = {parquet}, .key = key}, *tokenizer::bytes(), 1)
        .train.num_tokens();
  };
  EXPECT_GT(tokens_of("text"), 86);
  EXPECT_NE(error_of<InputError>([&] { tokens_of("txt"); }).find("has no column \"txt\"; did you mean text?"),
            std::string::npos);
  EXPECT_NE(error_of<InputError>([&] {
              tokens_of("contents");
            }).find("; there are id, text, tags, score; --key, or data.key"),
            std::string::npos);
}

TEST_F(OpenCorpus, KeepsTheLineLimitOfTheRecipe) {
  write_all(dir_ / "c.txt", "aaaaaaaaaaaaaaaaaaaa\n");
  write_all(dir_ / "c.jsonl", "{\"text\": \"" + std::string(20, 'a') + "\"}\n");
  const auto error_with = [&](const std::string& train, const std::string& valid, Index max_line) {
    return error_of<InputError>([&] {
      open_data(*fs_, {.tokenizer = "byte", .train = {path(train)}, .valid = {path(valid)}, .max_line = max_line},
                *tokenizer::bytes(), 1);
    });
  };
  for (const auto& [train, valid] : {std::pair{"c.txt", "b.jsonl"}, {"c.jsonl", "b.jsonl"}, {"b.jsonl", "c.txt"}}) {
    EXPECT_EQ(error_with(train, valid, 32), "");
    EXPECT_NE(error_with(train, valid, 19).find("has over 19 bytes"), std::string::npos) << train << " " << valid;
    EXPECT_NE(error_with(train, valid, 19).find("or data.max_line of a recipe, raises that"), std::string::npos);
  }
}

TEST_F(OpenCorpus, TakesFoldersAndPatterns) {
  const std::string both("one\0two\0", 8), all = both + std::string("hello\0", 6) + both;
  EXPECT_EQ(text(*open({""})), all) << "token files first, then texts, in name order";
  EXPECT_EQ(text(*open({"*.jsonl"})), both);
  EXPECT_EQ(text(*open({"[ab].*"})), std::string("hello\0", 6) + both);
  EXPECT_EQ(text(*open({"tok*"})), both);
  EXPECT_EQ(text(*open({"tokens.*"})), both) << "both files are one corpus";
  EXPECT_NE(error("*.parquet").find("no file matches the pattern"), std::string::npos);
  fs_->unlink(dir_ / "tokens.idx");
  EXPECT_NE(error("").find("tokens.idx: is missing beside tokens.bin"), std::string::npos);
}

TEST_F(OpenCorpus, FoldersAreNamedWithTheirFiles) {
  const auto opened = [&](const DataConfig& config) { return open_data(*fs_, config, *tokenizer::bytes(), 1).notes; };
  const std::string folder = dir_.path().string();
  DataConfig config{.tokenizer = "byte", .train = {folder}};
  EXPECT_EQ(opened(config).folders,
            std::vector<std::string>{str("data.train = ", folder, ": 4 files: a.txt, b.jsonl, tokens.bin, ...")});
  config.train = {path("*.txt")};
  config.valid = {path("a.txt"), path("tokens*")};
  EXPECT_EQ(opened(config).folders,
            (std::vector<std::string>{str("data.train = ", path("*.txt"), ": 1 file: a.txt"),
                                      str("data.valid = ", path("tokens*"), ": 2 files: tokens.bin, tokens.idx")}));
  config = {.tokenizer = "byte", .train = {str("0.5 ", folder), str("0.5 ", path("a.txt"))}};
  EXPECT_EQ(opened(config).folders.size(), 1u);
  config = {.tokenizer = "byte", .train = {path("a.txt")}};
  EXPECT_TRUE(opened(config).folders.empty());
  EXPECT_FALSE(opened(config).has_members);
  config.valid = {path("b.jsonl")};
  EXPECT_TRUE(opened(config).has_members);
  write_all(dir_ / "rows.csv", "a,b\n");
  config.train = {folder};
  EXPECT_NE(error_of<InputError>([&] { opened(config); }).find(str("[", path("rows.csv"), "] is a table (CSV)")),
            std::string::npos);
}

TEST_F(OpenCorpus, NamesWhatIsMissing) {
  EXPECT_EQ(error("a.tx"),
            str("[data.train] ", path("a.tx"), ": there is no such file; did you mean ", path("a.txt"), "?"));
  EXPECT_EQ(error("token.bin"),
            str("[data.train] ", path("token.bin"), ": there is no such file; did you mean ", path("tokens.bin"), "?"));
  EXPECT_EQ(error("somewhere/x"),
            str("[data.train] ", path("somewhere/x"), ": there is no folder ", path("somewhere")));
  fs_->unlink(dir_ / "tokens.idx");
  for (const std::string name : {"tokens", "tokens.bin"})
    EXPECT_EQ(error(name), str("[data.train] ", path("tokens.idx"),
                               ": is missing beside tokens.bin; copy it too, or build the token file again"));
  EXPECT_EQ(error_of<ConfigError>([&] { open({}); }), "data.train = []: must name at least one file");
}

TEST_F(OpenCorpus, AllFilesThatAreMissingAreOneErrorBeforeAnyIsRead) {
  write_all(dir_ / "bad.jsonl", "no JSON\n");
  write_all(dir_ / "table.csv", "a,b\n");
  fs_->unlink(dir_ / "tokens.idx");
  DataConfig config{.tokenizer = "byte",
                    .train = {path("bad.jsonl"), path("gone.txt"), path("table.csv")},
                    .valid = {path("lost/x"), path("tokens")}};
  const auto problem = [&] { return error_of<InputError>([&] { open_data(*fs_, config, *tokenizer::bytes(), 1); }); };
  const std::string all = problem();
  EXPECT_TRUE(all.starts_with("[data.train, data.valid] 4 problems\n")) << all;
  for (const char* part : {"gone.txt: there is no such file", "table.csv] is a table (CSV)", "there is no folder ",
                           "tokens.idx: is missing beside tokens.bin"})
    EXPECT_NE(all.find(part), std::string::npos) << all;
  config.train = {"0.3 " + path("gone.txt"), "0.7 " + path("a.txt")};
  config.valid = {};
  EXPECT_EQ(problem(), str("[data.train] ", path("gone.txt"), ": there is no such file"));
}

TEST_F(OpenCorpus, OpensTrainAndValid) {
  const auto with = [&](std::vector<std::string> valid, std::string split) {
    return open_data(*fs_,
                     {.tokenizer = "byte",
                      .vocab_dir = "",
                      .train = {path("tokens")},
                      .valid = std::move(valid),
                      .split = std::move(split)},
                     *tokenizer::bytes(), 1);
  };
  EXPECT_EQ(with({}, "").train.count(), 7);
  EXPECT_FALSE(with({}, "").valid.has_value());
  EXPECT_EQ(with({}, "0.5").train.corpora()[0].samples.range(), (TokenRange{0, 4}));
  EXPECT_EQ(with({}, "0.5").valid->range(), (TokenRange{4, 8}));
  EXPECT_EQ(with({path("a.txt")}, "").train.count(), 7);
  EXPECT_EQ(with({path("a.txt")}, "").valid->count(), 5);
  EXPECT_EQ(error_of<InputError>([&] { with({}, "0.9"); }),
            str("data.valid (from data.split): [", path("tokens.bin"),
                "] 1 tokens in this part: one sample of seq_len 1 takes 2"));
}

TEST_F(OpenCorpus, DocumentsEndWithTheTokenizersToken) {
  DataConfig config{.tokenizer = "byte", .vocab_dir = "", .train = {path("tokens")}, .valid = {path("b.jsonl")}};
  EXPECT_FALSE(open_data(*fs_, config, *tokenizer::bytes(), 3).train.end_of_document());
  config.attend_across_documents = false;
  const DataSets sets = open_data(*fs_, config, *tokenizer::bytes(), 3);
  EXPECT_EQ(sets.train.end_of_document(), 0);
  EXPECT_EQ(sets.valid->end_of_document(), 0);
  EXPECT_EQ(sets.notes.left_out, std::vector<std::string>{});
  const CorpusOptions options{.end_of_document = EndOfDocument::omit};
  IndexedDatasetBuilder builder(*fs_, dir_ / "endless", {.vocab_size = 256});
  build_corpus(*fs_, {dir_ / "b.jsonl"}, *tokenizer::bytes(), options, builder);
  config.train = {path("endless")};
  EXPECT_EQ(
      open_data(*fs_, config, *tokenizer::bytes(), 3).notes.left_out,
      std::vector<std::string>{str("data.attend_across_documents = false: no document of ", path("endless.bin"),
                                   " ends in its 6 first tokens: none is the token 0, which `data build` appends")});
}

}  // namespace
}  // namespace megalith::data
