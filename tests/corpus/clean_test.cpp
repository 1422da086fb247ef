#include "megalith/corpus/clean.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/data/byte_source.h"
#include "megalith/io/run_lock.h"

#include "tests/corpus/dedup_run.h"

namespace megalith::corpus {
namespace {

using support::files_of;
using support::line;
using support::words;

class Clean : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) {
    write_all(dir_ / name, contents);
    return dir_ / name;
  }
  CleanReport run() {
    options_.output = dir_ / str("out", runs_++);
    return clean(*io::posix_fs(), options_);
  }
  std::string cleaned(const std::string& contents) {
    options_.inputs = {file("in.jsonl", contents)};
    report_ = run();
    return read_all(options_.output / "00000-in.jsonl");
  }

  TempDir dir_;
  CleanOptions options_;
  CleanReport report_;
  int runs_ = 0;
};

TEST_F(Clean, KeepsLinesAsTheyWere) {
  const std::string contents = "{\"a\": 1.0, \"text\" : \"x\\u0041\", \"b\":[ ]}\n{\"text\": \"\"}\n";
  EXPECT_EQ(cleaned("\n" + contents + " \n"), contents);
  EXPECT_EQ(report_.total.documents, 2u);
  EXPECT_EQ(report_.total.documents_out, 2u);
}

TEST_F(Clean, ASecondStartInTheSameFolderIsRefused) {
  options_.inputs = {file("in.jsonl", line("a"))};
  options_.output = dir_ / "busy";
  CleanOptions second = options_;
  std::string text;
  options_.progress = [&](std::uint64_t, std::uint64_t) {
    text = error_of<IoError>([&] { clean(*io::posix_fs(), second); });
  };
  clean(*io::posix_fs(), options_);
  EXPECT_NE(text.find("the folder is in use by host "), std::string::npos) << text;
  EXPECT_EQ(files_of(options_.output), (std::map<std::string, std::string>{{"00000-in.jsonl", line("a")}}));
  { const io::RunLock killed = io::RunLock::take(dir_ / "killed", ".run.lock"); }
  options_.output = dir_ / "killed";
  options_.progress = {};
  EXPECT_NO_THROW(clean(*io::posix_fs(), options_)) << "what a job that was killed has left does not count";
}

TEST_F(Clean, LeavesOutLinesThatAreTooLong) {
  options_.bad_lines = BadLines::skip;
  options_.reading.max_document_bytes = 1000;
  options_.reading.block_bytes = 100;
  const std::string longest = line(std::string(5000000, 'x'));  // several windows
  EXPECT_EQ(cleaned(line("a") + longest + line("b") + longest + "{\"text\": 1}\n" + line("c") + longest),
            line("a") + line("b") + line("c"));
  EXPECT_EQ(report_.total.bad[static_cast<std::size_t>(data::BadDocument::too_long)], 3u);
  EXPECT_EQ(report_.total.documents, 3u);
  ASSERT_EQ(report_.bad_lines.size(), 4u);
  EXPECT_NE(report_.bad_lines[1].find("line 4 has more bytes"), std::string::npos) << report_.bad_lines[1];
  EXPECT_NE(report_.bad_lines[2].find("line 5"), std::string::npos) << report_.bad_lines[2];
  options_.inputs = {file("long.txt", longest), file("short.txt", "d")};
  const CleanReport texts = run();
  EXPECT_EQ(texts.total.documents_out, 1u);
  EXPECT_EQ(texts.total.bad[static_cast<std::size_t>(data::BadDocument::too_long)], 1u);
  options_.bad_lines = BadLines::fail;
  EXPECT_NE(error_of<InputError>([&] { run(); }).find("its text has over 1000 bytes"), std::string::npos);
}

TEST_F(Clean, PacksWhatItWrites) {
  std::string lines;
  for (int i = 0; i < 20000; ++i) lines += line(words(str("w", i), 20));
  const auto unpacked = [&](const std::string& name) {
    std::string text;
    for (const auto source = data::open_bytes(*io::posix_fs(), options_.output / name);;) {
      text += source->take(source->window().size()).bytes;
      if (!source->extend()) return text;
    }
  };
  for (const auto& [compression, name] :
       {std::pair{Compression::gzip, "00000-in.jsonl.gz"}, {Compression::zstd, "00000-in.jsonl.zst"}}) {
    options_.compression = compression;
    options_.inputs = {file("in.jsonl", lines)};
    options_.threads = 1;
    const CleanReport one = run();
    EXPECT_EQ(unpacked(name), lines);
    const std::string bytes = read_all(options_.output / name);
    EXPECT_LT(bytes.size(), lines.size() / 2);
    EXPECT_EQ(one.total.bytes_written, bytes.size());
    options_.threads = 4;
    run();
    EXPECT_EQ(read_all(options_.output / name), bytes);
    options_.inputs = {file("empty.jsonl", "")};
    run();
    EXPECT_EQ(unpacked(std::string(name).replace(6, 2, "empty")), "");
  }
}

TEST_F(Clean, JoinsLinesInTheTextMemberOnly) {
  options_.lines = CleanOptions::Lines::joined;
  EXPECT_EQ(
      cleaned("{\"id\": \"a\\nb\", \"o\": {\"text\": \"c,}\\\"\\nd\"}, \"text\" : \"one\\ntwo \\\"q\\\"\\n\\n\\nend\" ,"
              "\"z\": [1, {\"y\": \"]\"}]}\n" +
              line("as it was")),
      "{\"id\": \"a\\nb\", \"o\": {\"text\": \"c,}\\\"\\nd\"}, \"text\" : \"one two \\\"q\\\"\\n\\nend\" ,"
      "\"z\": [1, {\"y\": \"]\"}]}\n" +
          line("as it was"));
  EXPECT_EQ(report_.total.repaired, 1u);
  const std::string once = cleaned("{\"te\\u0078t\": \"one\\ntwo\", \"u\": 1}\n");
  EXPECT_EQ(once, "{\"te\\u0078t\": \"one two\", \"u\": 1}\n") << "a key that is written otherwise";
  EXPECT_EQ(cleaned(once), once);
}

TEST_F(Clean, CountsTokensUpToTheLimit) {
  options_.tokenizer = tokenizer::make_tokenizer("byte", "", *io::posix_fs());
  options_.min_tokens = 128;
  std::string all, long_enough;
  for (int tokens = 126; tokens <= 130; ++tokens) {
    all += line(std::string(static_cast<std::size_t>(tokens), 'x'));
    if (tokens >= 128) long_enough += line(std::string(static_cast<std::size_t>(tokens), 'x'));
  }
  EXPECT_EQ(cleaned(line("") + all + line(std::string(100000, 'y'))), long_enough + line(std::string(100000, 'y')));
  EXPECT_EQ(report_.total.brief, 3u);
  EXPECT_EQ(report_.total.brief_bytes, 126u + 127);
}

TEST_F(Clean, RemovesListedTitles) {
  options_.titles.add_list(*io::posix_fs(), file("titles", "Du Fu\n\n  Free   Derry\nNobody\n"));
  const std::string stays = "{\"title\": \"du fu\", \"text\": \"Du Fu\"}\n" + line("Du Fu was\\nFree Derry");
  EXPECT_EQ(cleaned("{\"title\": \"Du\\u00a0 Fu\", \"text\": \"x\"}\n" + stays + line("\\n Free Derry \\nmore") +
                    "{\"title\": 1, \"text\": \"Du Fu\\n\"}\n"),
            stays)
      << "a title that is no string is none";
  EXPECT_EQ(report_.total.titled, 3u);
  EXPECT_EQ(report_.titles_missed, std::vector<std::string>{"Nobody"});
}

TEST_F(Clean, ReadsTitlesOfCompressedFiles) {
  for (const Compression compression : {Compression::gzip, Compression::zstd}) {
    std::string packed;
    const auto packer = make_packer(compression);
    packer->add("\n = Du Fu = \n\n", packed);
    packer->finish(packed);
    Titles titles;
    titles.add_wikitext(*io::posix_fs(), file("wiki", packed));
    EXPECT_TRUE(titles.has("Du Fu"));
    titles.add_list(*io::posix_fs(), file("empty", ""));
    EXPECT_EQ(titles.size(), 1u);
  }
}

TEST_F(Clean, RemovesTheArticlesOfAWikiTextFile) {
  const io::Path wikitext =
      file("wiki.tokens",
           " \n = Ise @-@ class battleship = \n \n text\n = 1 rad / s = \n 1 more \n \n = = Sub = = \n"
           " \n = Kiss You ( One Direction song ) = \n\n = Dick <unk> = \n \n = <unk> = \n");
  options_.titles.add_wikitext(*io::posix_fs(), wikitext);
  EXPECT_EQ(options_.titles.size(), 4u);
  const std::string stays = "{\"title\": \"1 rad / s\", \"text\": \"x\"}\n{\"title\": \"Sub\", \"text\": \"x\"}\n";
  EXPECT_EQ(cleaned("{\"title\": \"Ise-class battleship\", \"text\": \"x\"}\n" + stays +
                    line(" = Kiss You (One Direction song) = \\n \\n text")),
            stays);
  EXPECT_EQ(report_.titles_unknown, (std::vector<std::string>{"Dick <unk>", "<unk>"}));
  EXPECT_TRUE(report_.titles_missed.empty());
  EXPECT_NE(error_of<InputError>([&] {
              options_.titles.add_wikitext(*io::posix_fs(), file("no", "text\n"));
            }).find("has no heading"),
            std::string::npos);
}

TEST_F(Clean, StepsComeInOrder) {
  options_.tokenizer = tokenizer::make_tokenizer("byte", "", *io::posix_fs());
  options_.min_tokens = 4;
  options_.lines = CleanOptions::Lines::joined;
  options_.titles.add_list(*io::posix_fs(), file("titles", "a\n"));
  EXPECT_EQ(cleaned(line("a\\nb") + line("b\\n\\n\\n\\nc")), line("b\\n\\nc"))
      << "the title is the first line before repair; the length is that after it";
  EXPECT_EQ(report_.total.titled, 1u);
  EXPECT_EQ(report_.total.brief, 0u);
  EXPECT_EQ(report_.total.text_bytes_out, 4u);
}

TEST_F(Clean, BadLinesFailOrAreCounted) {
  const std::string bad =
      "[1]\n{\"text\": 1}\n{\"txt\": \"a\"}\n{\"text\": \"a\", \"text\": \"b\"}\n{\"text\": \"\\ud800\"}\n"
      "{\"text\": \"\xFF\"}\n{\"text\"\n{\"text\": null}\n7\n{\"text\": \"a\tb\"}\n{\"text\": \"a\"} b\n" +
      std::string("{\"text\": \"a\0b\"}\n", 16) + "{\"a\": " + std::string(70, '[') + std::string(70, ']') + "}\n" +
      "{\"text\": \"\\udc00\"}\n{\"text\": \"half\n{\"text\": \"unexpected end of input\",}\n";
  EXPECT_NE(error_of<InputError>([&] { cleaned(line("fine") + bad); }).find("in.jsonl] line 2, JSON value: must be an"),
            std::string::npos);
  EXPECT_TRUE(files_of(options_.output).empty());
  options_.bad_lines = BadLines::skip;
  EXPECT_EQ(cleaned(line("fine") + bad + line("more")), line("fine") + line("more"));
  const auto count = [&](data::BadDocument reason) { return report_.total.bad[static_cast<std::size_t>(reason)]; };
  using Bad = data::BadDocument;
  const std::pair<Bad, std::uint64_t> counts[] = {
      {Bad::array, 1},       {Bad::no_object, 1}, {Bad::no_string, 1},         {Bad::null, 1},
      {Bad::key_missing, 1}, {Bad::key_twice, 1}, {Bad::lone_surrogate, 2},    {Bad::not_utf8, 1},
      {Bad::cut, 2},         {Bad::not_json, 2},  {Bad::control_character, 1}, {Bad::zero_byte, 1},
      {Bad::too_deep, 1},    {Bad::too_long, 0}};
  static_assert(std::size(counts) == data::kNumBadDocuments);
  for (const auto& [reason, number] : counts) EXPECT_EQ(count(reason), number) << name_of(reason);
  EXPECT_EQ(report_.bad_lines.size(), 10u);
  std::string many;
  for (int i = 0; i < 30; ++i) many += "x\n";
  cleaned(many);
  EXPECT_EQ(report_.bad_lines.size(), 10u);
  EXPECT_EQ(count(data::BadDocument::not_json), 30u);
}

TEST_F(Clean, NothingAppearsWhenAnInputFails) {
  options_.inputs = {file("good.jsonl", line("fine")), file("bad.jsonl", "{\n")};
  EXPECT_NE(error_of<InputError>([&] { run(); }), "");
  EXPECT_TRUE(files_of(options_.output).empty());
}

TEST_F(Clean, GivesTheSameBytesForAnyThreads) {
  options_.lines = CleanOptions::Lines::joined;
  std::string contents;
  for (int i = 0; i < 300; ++i)
    contents += line(words(str("d", i, "x"), i % 40) + "\\n\\n\\n" + words("t", 3) + "\\nend");
  options_.inputs = {file("a.jsonl", contents), file("b.txt", "one\ntwo\n")};
  options_.reading.block_bytes = 1000;
  run();
  const auto want = files_of(options_.output);
  EXPECT_EQ(want.at("00001-b.jsonl"), "{\"text\": \"one two\\n\"}\n");
  for (const int threads : {2, 7}) {
    options_.threads = threads;
    run();
    EXPECT_TRUE(files_of(options_.output) == want);
  }
  options_.write = CleanOptions::Write::report_only;
  run();
  EXPECT_TRUE(files_of(options_.output).empty());
}

TEST_F(Clean, RefusesBadSettings) {
  options_.min_tokens = 1;
  EXPECT_NE(error_of<ConfigError>([&] { cleaned(line("a")); }).find("--min-tokens = 1: needs --tokenizer"),
            std::string::npos);
  options_.min_tokens = 0;
  options_.inputs = {file("in.jsonl", line("a"))};
  options_.output = dir_.path();
  EXPECT_NE(error_of<ConfigError>([&] { clean(*io::posix_fs(), options_); }).find("has files"), std::string::npos);
}

}  // namespace
}  // namespace megalith::corpus
