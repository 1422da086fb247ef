#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "megalith/base/philox.h"
#include "megalith/base/utf8.h"

namespace megalith::support {

/// Texts in which everything that GPT-2's pattern looks at stands beside everything else.
inline std::string tricky_text(std::uint64_t seed, std::uint64_t pieces) {
  constexpr std::array<std::string_view, 32> kPieces = {" ",
                                                        " ",
                                                        "  ",
                                                        "\n",
                                                        "\r\n",
                                                        "\t",
                                                        "a",
                                                        "ab",
                                                        "The",
                                                        "ing",
                                                        "'",
                                                        "'s",
                                                        "'ll",
                                                        "'S",
                                                        "1",
                                                        "23",
                                                        "-",
                                                        "...",
                                                        "\xC3\xA9",
                                                        "\xE6\x97\xA5",
                                                        "\xC2\xA0",
                                                        "\xE3\x80\x80",
                                                        "\xC2\x85",
                                                        "\xE2\x80\x8B",
                                                        "\xE1\xA0\x8E",
                                                        "\xEF\xBB\xBF",
                                                        "\xF0\x9F\x98\x80",
                                                        "\xCC\x81",
                                                        "\xE2\x85\xAB",
                                                        "\xD9\xA3",
                                                        "_",
                                                        std::string_view("\0", 1)};
  const RandomSite site{.seed = seed, .site = 5};
  std::string text;
  for (std::uint64_t i = 0; i < pieces; ++i) text += kPieces[site.word(i) % kPieces.size()];
  return text;
}

/// Any characters of Unicode, surrogates left out.
inline std::string any_text(std::uint64_t seed, std::uint64_t characters) {
  const RandomSite site{.seed = seed, .site = 6};
  std::string text;
  for (std::uint64_t i = 0; i < characters; ++i) {
    const std::uint32_t word = site.word(2 * i);
    const std::uint32_t below[] = {0x80, 0x800, 0x10000, 0x110000};
    const std::uint32_t c = site.word(2 * i + 1) % below[word % 4];
    if (c < 0xD800 || c >= 0xE000) append_utf8(c, text);
  }
  return text;
}

}  // namespace megalith::support
