#pragma once
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"

namespace megalith::support {

/// A folder of tests/data/hf, which the transformers library wrote, and what it computes with it (expected.json;
/// tests/reference/make_hf_models.py).
struct HfCase {
  explicit HfCase(const std::string& name)
      : folder(std::filesystem::path(MEGALITH_TEST_DATA) / "hf" / name),
        expected(nlohmann::json::parse(read_all(folder / "expected.json"))) {}
  std::filesystem::path folder;
  nlohmann::json expected;
};

}  // namespace megalith::support
