#pragma once
#include <span>
#include <string>

#include <gtest/gtest.h>

#include "megalith/io/checksum.h"

namespace megalith {

/// Replaces text in a sealed JSON document and puts the right checksum in: what a hostile or a newer writer would do.
inline std::string resealed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at == std::string::npos) return text;
  text.replace(at, from.size(), to);
  constexpr std::size_t kAt = 16;  // of the digits
  text.replace(kAt, 32, 32, '0');
  return text.replace(kAt, 32, io::checksum(std::as_bytes(std::span(text))).hex());
}

}  // namespace megalith
