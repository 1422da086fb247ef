#include "tests/fuzz/fuzz_target.h"

#include <algorithm>
#include <array>

#include "megalith/base/philox.h"

namespace megalith::fuzz {
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kBinary[] = {"\0"sv,
                                        "\0\0\0\0"sv,
                                        "\xFF"sv,
                                        "\xFF\xFF\xFF\xFF"sv,
                                        "\x7F"sv,
                                        "\x80"sv,
                                        "\x80\x80\x80\x80\x01"sv,
                                        "PAR1"sv,
                                        "text"sv,
                                        "\x1F\x8B\x08"sv,
                                        "\x28\xB5\x2F\xFD"sv,
                                        "\x50\x2A\x4D\x18"sv};
constexpr std::string_view kWords[] = {"\n"sv, "\r\n"sv,     "##"sv,           "[UNK]"sv, "[SEP]"sv, "ab"sv,
                                       " "sv,  "\xC3\xA9"sv, "\xE4\xB8\x80"sv, "\0"sv,    "\xFF"sv,  "\xCC\x81"sv};
constexpr std::string_view kPatterns[] = {"\\p{"sv, "}"sv,     "["sv, "]"sv,  "(?"sv,   "(?<="sv, "(?!"sv, ")"sv,
                                          "{1,"sv,  "*"sv,     "+"sv, "?"sv,  "|"sv,    "\\s"sv,  "\\S"sv, "\\x{"sv,
                                          "^"sv,    "\\u12"sv, "-"sv, "&&"sv, "(?i:"sv, "."sv,    "\\d"sv, "\\"sv,
                                          "{"sv,    "[^"sv,    " "sv, "\n"sv, "'s"sv};
constexpr std::string_view kJson[] = {"\""sv,
                                      "{"sv,
                                      "}"sv,
                                      "null"sv,
                                      "true"sv,
                                      ": 3"sv,
                                      "["sv,
                                      "]"sv,
                                      ","sv,
                                      "-1"sv,
                                      "99999999999"sv,
                                      "\\u0000"sv,
                                      "\"Split\""sv,
                                      "\"Regex\""sv,
                                      "\"special\": false"sv,
                                      "\"Removed\""sv,
                                      "\"String\""sv,
                                      "\\\\p{L}"sv,
                                      "+"sv,
                                      "|"sv,
                                      "\"Digits\""sv,
                                      "1, \"lstrip\": "sv,
                                      "[], \"rstrip\": "sv};

constexpr std::string_view kRows[] = {
    "\t"sv,       "\n"sv,   "\r\n"sv,         "0"sv,  "1"sv,    "id"sv, "question1"sv, "neutral"sv, "is_duplicate"sv,
    "\xC3\xA9"sv, "\xFF"sv, "\xEF\xBB\xBF"sv, "\""sv, "\t\t"sv, "-"sv};
constexpr std::string_view kTaskJson[] = {"\""sv,
                                          "{"sv,
                                          "}"sv,
                                          "["sv,
                                          "]"sv,
                                          ","sv,
                                          ":"sv,
                                          "null"sv,
                                          "-1"sv,
                                          "0.5"sv,
                                          "3"sv,
                                          "99999999999999999999"sv,
                                          "1e999"sv,
                                          "\\u00e9"sv,
                                          "\\ud83d"sv,
                                          "\xC3\xA9"sv,
                                          "\xFF"sv,
                                          "\n"sv,
                                          "\"id\""sv,
                                          "\"a\""sv,
                                          "\"answers\""sv,
                                          "\"answer_start\": 0"sv,
                                          "\"text\": \"\""sv,
                                          "\"A\""sv,
                                          "[\"a\", \"b\", \"c\", \"d\"]"sv,
                                          "\"context\": \"x\""sv};

constexpr std::array<Target, 11> kTargets = {{
    {"gzip", read_packed, gzip_seeds, kBinary},
    {"zstd", read_packed, zstd_seeds, kBinary},
    {"xz", read_packed, xz_seeds, kBinary},
    {"parquet", read_parquet, parquet_seeds, kBinary},
    {"wordpiece", read_wordpiece, wordpiece_seeds, kWords},
    {"pattern", read_pattern, pattern_seeds, kPatterns},
    {"tokenizer_json", read_tokenizer_json, tokenizer_json_seeds, kJson},
    {"glue", read_glue, glue_seeds, kRows},
    {"squad", read_squad, squad_seeds, kTaskJson},
    {"race", read_race, race_seeds, kTaskJson},
    {"predictions", read_predictions, predictions_seeds, kTaskJson},
}};

}  // namespace

std::span<const Target> targets() { return kTargets; }

const Target& target_named(std::string_view name) {
  const auto* const found = std::ranges::find(kTargets, name, &Target::name);
  if (found != kTargets.end()) return *found;
  std::string all;
  for (const Target& target : kTargets) all += " " + std::string(target.name);
  throw std::invalid_argument("no target " + std::string(name) + ": there are" + all);
}

std::string mutated(const Target& target, const std::vector<std::string>& seeds, std::uint64_t test) {
  const RandomSite site{.seed = 17, .site = 9};
  std::uint64_t next = test * 64;
  const auto random = [&](std::size_t below) { return site.word(next++) % below; };
  std::string text = seeds[random(seeds.size())];
  if (random(16) == 0) {  // the end of another one after the beginning of this one
    const std::string& other = seeds[random(seeds.size())];
    text = text.substr(0, random(text.size() + 1)) + other.substr(random(other.size() + 1));
  }
  for (std::size_t changes = 1 + random(4); changes > 0; --changes) {
    // Half of the changes near the end: footers and checksums stand there.
    const std::size_t reach = random(2) == 0 ? text.size() : std::min<std::size_t>(text.size(), 400);
    const std::size_t at = text.size() - random(reach + 1), size = random(8);
    switch (random(6)) {
      case 0:
        text.insert(at, target.parts[random(target.parts.size())]);
        break;
      case 1:
        text.erase(at, size);
        break;
      case 2:
        text.insert(at, text.substr(at, size));
        break;
      case 3:
        if (random(8) == 0) text.resize(at);
        break;
      case 4:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ 1 << random(8));
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random(256));
    }
  }
  return text;
}

}  // namespace megalith::fuzz
