#include "megalith/io/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

using namespace std::string_literals;
using testing::StartsWith;

/// Writes down what it is told.
class Notes final : public JsonVisitor {
 public:
  void start_object() override { said += "{ "; }
  void end_object() override { said += "} "; }
  void start_array() override { said += "[ "; }
  void end_array() override { said += "] "; }
  void key(std::string& name) override { said += str(name, '@', place.line, ": "); }
  void text(std::string& value) override { said += str('"', value, "\" "); }
  void count(std::uint64_t value) override { said += str(value, ' '); }
  void other(std::string_view shown) override { said += str(shown, ' '); }
  std::string said;
};

std::string notes(std::string_view text, const JsonSource& source = {.name = "f"}) {
  Notes visitor;
  visit_json(text, source, visitor);
  return visitor.said;
}

std::string nested(int depth) {
  const auto size = static_cast<std::size_t>(depth);
  return std::string(size, '[') + std::string(size, ']');
}

/// The error of both ways of reading for a text that is refused.
std::string error(std::string_view text, const JsonSource& source = {.name = "f"}) {
  const std::string visited = error_of<InputError>([&] { notes(text, source); });
  EXPECT_EQ(error_of<InputError>([&] { read_json(text, source); }), visited);
  return visited;
}

TEST(JsonReader, TellsWhatStandsInATextInItsOrder) {
  const std::string text =
      "{\"b\": [1, -1, 1.50, 18446744073709551615, 18446744073709551616],\n \"a\": {\"b\": null},\n"
      "\"\\u00e9\": [true, false, \"x\\n\"]} \r\n\t";
  EXPECT_EQ(notes(text),
            "{ b@1: [ 1 -1 1.50 18446744073709551615 18446744073709551616 ] a@2: { b@2: null } "
            "\u00e9@3: [ true false \"x\n\" ] } ");
  EXPECT_EQ(read_json(text, {.name = "f"}), nlohmann::json::parse(text));
  EXPECT_EQ(notes("{\"a\": 1}", {.name = "f", .first_line = 7}), "{ a@7: 1 } ");
}

TEST(JsonReader, RefusesWhatFollowsTheValue) {
  EXPECT_EQ(error("[1] 2"),
            "[f] line 1, column 5, not valid JSON: syntax error while parsing value - unexpected number "
            "literal; expected end of input");
  EXPECT_THAT(error("{}\n{}"), StartsWith("[f] line 2, column 1, not valid JSON: "));
  EXPECT_EQ(error("[1]\n\0"s), "[f] line 2, column 1, not valid JSON: a zero byte");
  EXPECT_EQ(error("[1]\0[2]"s, {.name = "f", .first_line = 9, .part = "header"}),
            "[f] header, line 9, column 4, not valid JSON: a zero byte");
  EXPECT_EQ(error("\"a\0b\""s), "[f] line 1, column 3, not valid JSON: a zero byte");
  EXPECT_EQ(notes("\"a\\u0000b\""), "\"a\0b\" "s) << "written as JSON requires";
}

TEST(JsonReader, RefusesAKeyThatComesTwice) {
  EXPECT_EQ(error("{\"a\": 1,\n \"b\": 2, \"\\u0061\": 3}"), "[f] line 2, column 17, key \"a\" is there twice");
  EXPECT_EQ(error("[{\"a\": {\"b\": 1, \"b\": 1}}]"), "[f] line 1, column 19, key \"b\" is there twice");
  EXPECT_EQ(notes("[{\"a\": {\"a\": 1}}, {\"a\": 2}, {\"b\": {}, \"a\": 3}]"),
            "[ { a@1: { a@1: 1 } } { a@1: 2 } { b@1: { } a@1: 3 } ] ")
      << "in other objects";
}

TEST(JsonReader, RefusesNestingDeeperThan64) {
  EXPECT_EQ(notes(nested(64)).size(), 4U * 64);
  EXPECT_EQ(read_json(nested(64), {.name = "f"}), nlohmann::json::parse(nested(64)));
  EXPECT_EQ(error(nested(65)), "[f] line 1, column 65, nested deeper than 64");
  EXPECT_EQ(error(nested(1'000'000)), "[f] line 1, column 65, nested deeper than 64");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += i % 2 == 0 ? "{\"a\":" : "[";
  EXPECT_EQ(error(objects), "[f] line 1, column 193, nested deeper than 64");
  EXPECT_EQ(error("[" + nested(63) + "," + nested(64) + "]"), "[f] line 1, column 192, nested deeper than 64");
}

TEST(JsonReader, SaysWhereATextIsNotJson) {
  EXPECT_THAT(error(""),
              StartsWith("[f] line 1, column 1, not valid JSON: syntax error while parsing value - unexpected end"));
  EXPECT_THAT(error("{\"a\": nul}"),
              StartsWith("[f] line 1, column 10, not valid JSON: syntax error while parsing value"));
  EXPECT_EQ(error("[1e999]"), "[f] line 1, column 7, not valid JSON: number overflow parsing '1e999'");
  for (const char* const bad : {"[1,]", "[01]", "[+1]", "[.5]", "[NaN]", "['a']", "{a: 1}", "[1 /*c*/]", "\"\xff\"",
                                "\"\n\"", "\"\\ud800\"", "[", "{\"a\"", "tru"})
    EXPECT_THAT(error(bad), StartsWith("[f] line ")) << bad;
}

}  // namespace
}  // namespace megalith::io
