#include "megalith/data/document_reader.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/input_files.h"

#include "tests/io/temp_dir.h"

namespace megalith::data {
namespace {

class Reading : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) {
    write_all(dir_ / name, contents);
    return dir_ / name;
  }
  /// The texts of a file, with their numbers.
  std::vector<std::string> texts(const io::Path& path) {
    std::vector<std::string> out;
    DocumentReader reader(*fs_, path, options_);
    DocumentText text("text");
    while (const auto block = reader.next()) {
      EXPECT_EQ(block->first, out.size());
      for (const RawDocument& document : block->documents) out.emplace_back(text.of(*block, document));
    }
    EXPECT_EQ(reader.documents(), out.size());
    return out;
  }

  TempDir dir_;
  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  DocumentReader::Options options_;
};

using Texts = std::vector<std::string>;

TEST_F(Reading, LinesAreDocumentsWhateverTheBlock) {
  const auto path = file(
      "a.jsonl", "{\"text\": \"one\"}\n\n \t\r\n{\"n\": {\"text\": 1}, \"text\": \"t\\u00e9\\n\"}\r\n{\"text\":\"\"}");
  for (const std::size_t block : {1, 16, 17, 40, 1000}) {
    options_.block_bytes = block;
    EXPECT_EQ(texts(path), (Texts{"one", "t\u00E9\n", ""})) << block;
  }
  EXPECT_EQ(texts(file("empty.jsonl", "")), Texts());
  EXPECT_EQ(texts(file("blank.jsonl", "\n\n")), Texts());
}

TEST_F(Reading, ATextIsOneDocument) {
  EXPECT_EQ(texts(file("a.txt", "one\ntwo\n")), Texts{"one\ntwo\n"});
  EXPECT_EQ(texts(file("empty.txt", "")), Texts{""});
  std::string large;
  for (int i = 0; i < 300000; ++i) large += str(i, ' ');
  EXPECT_EQ(texts(file("large.txt", large)), Texts{large});
  options_.max_document_bytes = 100;
  EXPECT_NE(error_of<InputError>([&] { texts(dir_ / "large.txt"); }).find("its text has over 100 bytes"),
            std::string::npos);
}

TEST_F(Reading, ALineIsAsLongAsAllowed) {
  const std::string longest = "{\"text\": \"" + std::string(3 << 20, 'x') + "\"}\n";
  const auto path = file("long.jsonl", "{\"text\": \"a\"}\n" + longest + "{\"text\": \"b\"}\n");
  EXPECT_EQ(texts(path).at(1).size(), std::size_t{3} << 20);
  options_.max_document_bytes = longest.size() - 1;
  EXPECT_EQ(texts(path).size(), 3u);
  options_.max_document_bytes = longest.size() - 2;
  EXPECT_NE(error_of<InputError>([&] { texts(path); }).find("long.jsonl] line 2 has over"), std::string::npos);
}

TEST_F(Reading, ShortFilesKeepTheLimitToo) {
  const std::string good = "{\"text\": \"a\"}\n", bad = "{\"text\": \"" + std::string(100, 'x') + "\"}\n";
  const auto lines = file("lines.jsonl", good + bad + good), text = file("text.txt", std::string(100, 'x'));
  options_.max_document_bytes = 99;
  EXPECT_NE(error_of<InputError>([&] { texts(lines); }).find("lines.jsonl] line 2 has over 99 bytes"),
            std::string::npos);
  EXPECT_NE(error_of<InputError>([&] { texts(text); }).find("its text has over 99 bytes"), std::string::npos);
  options_.max_document_bytes = bad.size() - 1;
  EXPECT_EQ(texts(lines).size(), 3u);
  EXPECT_EQ(texts(text).size(), 1u);
}

// What simdjson does not take is read by the slower reader, which decides: so these are the errors of `data build`.
TEST_F(Reading, LinesThatAreNoDocumentAreNamed) {
  const auto error = [&](const std::string& line) {
    const std::string text = error_of<InputError>([&] { texts(file("bad.jsonl", "{\"text\": \"fine\"}\n" + line)); });
    return text.substr(text.find("bad.jsonl") == text.npos ? 0 : text.find("bad.jsonl"));
  };
  EXPECT_EQ(error("[1]"), "bad.jsonl] line 2, JSON value: must be an object, {\"key\": ...}");
  EXPECT_EQ(error("{\"text\": 1}"), "bad.jsonl] line 2, key \"text\": must be a string");
  EXPECT_EQ(error("{\"a\": \"b\"}"),
            "bad.jsonl] line 2, key \"text\": is missing; there are a; --key, or data.key of a recipe, names the one "
            "that holds the text");
  EXPECT_EQ(error("{\"text\": \"a\", \"text\": \"b\"}"), "bad.jsonl] line 2, column 20, key \"text\" is there twice");
  for (const std::string line :
       {"{\"text\": \"a\"", "{\"text\": \"a\"} x", "{\"text\": \"\\ud800\"}", "{\"text\": \"\xFF\"}",
        "{\"text\": \"a\tb\"}", "{\"text\": \"a\", }", "{'text': 1}", "nul"})
    EXPECT_NE(error(line).find("bad.jsonl] line 2, column "), std::string::npos) << line;
}

// Lines that the faster reader alone would take, or refuse: both give what io::visit_json() gives.
TEST_F(Reading, TheBoundsOfEveryJsonTextHold) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') + std::string(static_cast<std::size_t>(depth), ']');
  };
  std::string many;
  for (int i = 0; i < 100; ++i) many += str("\"k", i, "\": ", i, ", ");
  EXPECT_EQ(texts(file("a.jsonl", "{\"n\": 123456789012345678901234567890, \"text\": \"a\"}\n{\"d\": " + nested(60) +
                                      ", \"text\": \"b\"}\n{" + many + "\"text\": \"c\"}\n")),
            (Texts{"a", "b", "c"}));
  for (const std::string& bad : {"\"d\": " + nested(100), std::string("\"a\": 1, \"a\": 1"),
                                 std::string("\"o\": [1, {\"a\": 1, \"a\": 2}]"), many + "\"k7\": 1"})
    EXPECT_NE(error_of<InputError>([&] {
                texts(file("a.jsonl", "{" + bad + ", \"text\": \"a\"}\n"));
              }).find("a.jsonl] line 1, column "),
              std::string::npos)
        << bad;
}

TEST_F(Reading, JsonStringsAreEscaped) {
  std::string out;
  append_json_string(out, "a\"b\\c\n\t\x01\x1F/\u00E9");
  EXPECT_EQ(out, "\"a\\\"b\\\\c\\n\\t\\u0001\\u001f/\u00E9\"");
  EXPECT_EQ(texts(file("a.jsonl", "{\"text\": " + out + "}\n")).at(0), "a\"b\\c\n\t\x01\x1F/\u00E9");
}

TEST_F(Reading, FoldersAndPatternsStandForTheirFilesInNameOrder) {
  for (const char* name : {"b.jsonl", "a.jsonl", "c.txt", ".hidden", "_SUCCESS", "report.json", "removed.tsv"})
    file(name, "x");
  std::filesystem::create_directories(dir_ / "sub" / "deeper");
  write_all(dir_ / "sub" / "d.jsonl", "x");
  const auto names = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> all;
    for (const std::string& argument : arguments) all.push_back((dir_ / argument).string());
    std::string out;
    for (const io::Path& path : input_files(*fs_, all))
      out += path.lexically_relative(dir_.path()).lexically_normal().string() + " ";
    return out;
  };
  EXPECT_EQ(names({"."}), "a.jsonl b.jsonl c.txt ");
  EXPECT_EQ(names({"*.jsonl"}), "a.jsonl b.jsonl ");
  EXPECT_EQ(names({"c.txt", "[ab].jsonl"}), "c.txt a.jsonl b.jsonl ");
  EXPECT_EQ(names({"*/d.jsonl"}), "sub/d.jsonl ");
  EXPECT_EQ(names({"report.json"}), "report.json ") << "named, it is a file as any";
  EXPECT_NE(error_of<InputError>([&] { names({"*.gz"}); }).find("no file matches the pattern"), std::string::npos);
  EXPECT_NE(error_of<InputError>([&] { names({"sub/deeper"}); }).find("the folder has no files"), std::string::npos);
  EXPECT_NE(error_of<InputError>([&] { names({"a.json"}); }).find("did you mean"), std::string::npos);
}

}  // namespace
}  // namespace megalith::data
