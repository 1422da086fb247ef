#include "megalith/config/toml_text.h"

#include <string>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/run_config.h"

#include "tests/io/temp_dir.h"

namespace megalith::config {
namespace {

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

/// Each builds a text of a depth; the levels are tables and arrays in one another.
struct Shape {
  const char* name;
  std::string (*text)(int depth);
};
const Shape kShapes[] = {
    {"arrays", [](int n) { return "x = " + repeated("[", n) + repeated("]", n); }},
    {"arrays over lines", [](int n) { return "x = " + repeated("[\n", n) + repeated("]\n", n); }},
    {"inline tables", [](int n) { return "x = " + repeated("{ a = ", n) + "1" + repeated("}", n); }},
    {"a dotted key", [](int n) { return repeated("a.", n) + "a = 1"; }},
    {"a dotted key of strings",
     [](int n) { return repeated("\"a\" . 'b.c'. ", n / 2) + (n % 2 ? "a." : "") + "a = 1"; }},
    {"a header", [](int n) { return "[" + repeated("a.", n - 1) + "a]\n x = 1"; }},
    {"a header of arrays", [](int n) { return "[[" + repeated("a.", n - 2) + "a]]"; }},
    {"a key below a header", [](int n) { return "[a.b]\n" + repeated("c.", n - 2) + "d = 1.5"; }},
    {"dotted keys in inline tables",
     [](int n) { return "x = " + repeated("{ a.b = ", n / 2) + (n % 2 ? "[]" : "1") + repeated("}", n / 2); }},
    {"the second element", [](int n) { return "x = [1.5, \"[\", " + repeated("[", n - 1) + repeated("]", n); }},
    {"after a comment", [](int n) { return "# [[[ \"\n[a] # it's [\nb = 1 # '\n" + repeated("c.", n - 1) + "d = 1"; }},
};

TEST(TomlText, RefusesWhatIsDeeperThan64) {
  for (const Shape& shape : kShapes) {
    EXPECT_EQ(toml_too_deep(shape.text(kMaxTomlDepth)), std::nullopt) << shape.name;
    EXPECT_NO_THROW(read_toml(shape.text(kMaxTomlDepth))) << shape.name;
    EXPECT_TRUE(toml_too_deep(shape.text(kMaxTomlDepth + 1))) << shape.name;
    EXPECT_THROW(read_toml(shape.text(kMaxTomlDepth + 1)), TomlError) << shape.name;
    EXPECT_THROW(read_toml(shape.text(1'000'000)), TomlError) << shape.name;
  }
}

TEST(TomlText, CountsNothingButLevels) {
  const std::string dots = repeated(".", 100), brackets = repeated("[", 100);
  for (const std::string& text :
       {"a = \"" + dots + brackets + "\\\"" + brackets + "\"", "a = '" + brackets + "\\'\nb = 1",
        "a = \"\"\"\n" + brackets + "\"\" \\\"\"\"" + brackets + "\"\"\"\"\"\nb = 1",
        "a = '''" + brackets + "''" + brackets + "'''", "a = 1 # " + dots + brackets,
        repeated("[a.b.c]\n", 1) + repeated("# [\n", 100), "a = [" + repeated("1.5, ", 100) + "2.5]",
        "a = [" + repeated("[], {}, {b.c = 1.5}, ", 100) + "]",
        repeated("\n", 100) + "[[a]]\nb.c = 1\n" + repeated("[[a]]\n", 100)})
    EXPECT_EQ(toml_too_deep(text), std::nullopt) << text;
}

TEST(TomlText, ErrorsOfRecipesNameThePlace) {
  const auto error = [](const std::string& text) {
    return error_of<ConfigError>([&] { parse_recipe(text, "r.toml", {}); });
  };
  EXPECT_EQ(error("[model]\nnum_layers = " + repeated("[", 100'000)),
            "r.toml:2:77: nested deeper than 64 (recipes are TOML)");
  EXPECT_EQ(error(repeated("a.", 100'000) + "b = 1"), "r.toml:1:130: nested deeper than 64 (recipes are TOML)");
  const std::string setting = "model.num_layers=" + repeated("[", 100'000);
  const std::string refused =
      error_of<ConfigError>([&] { parse_recipe("", "r.toml", std::vector<std::string>{setting}); });
  EXPECT_TRUE(refused.find("model.num_layers") != std::string::npos && refused.size() < 400) << refused.substr(0, 400);
}

}  // namespace
}  // namespace megalith::config
