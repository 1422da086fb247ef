#pragma once
#include <fstream>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

#include "megalith/grid/parallel_config.h"

#include "tests/test_data.h"

namespace megalith::grid {

/// tests/data/groups/groups.json, keys in the order of the file. Compare .dump() or .get<T>(): GoogleTest takes a JSON
/// value for a container of itself and never finishes printing it.
inline const nlohmann::ordered_json& group_vectors() {
  static const nlohmann::ordered_json vectors = [] {
    std::ifstream file(MEGALITH_TEST_DATA "/groups/groups.json");
    if (!file) throw std::runtime_error("cannot open " MEGALITH_TEST_DATA "/groups/groups.json");
    return nlohmann::ordered_json::parse(file);
  }();
  return vectors;
}

inline ParallelSizes sizes_from(const nlohmann::ordered_json& args) {
  ParallelSizes sizes;
  for (const auto& [key, value] : args.items()) {
    if (value.is_null()) continue;
    if (key == "order") {
      sizes.order = value.get<std::string>();
    } else if (key == "world_size") {
      sizes.world_size = value;
    } else if (key == "tp") {
      sizes.tp = value;
    } else if (key == "cp") {
      sizes.cp = value;
    } else if (key == "pp") {
      sizes.pp = value;
    } else if (key == "ep") {
      sizes.ep = value;
    } else if (key == "dp") {
      sizes.dp = value.get<int>();
    } else if (key == "etp") {
      sizes.etp = value.get<int>();
    } else if (key == "edp") {
      sizes.edp = value.get<int>();
    } else if (key == "vpp") {
      sizes.vpp = value.get<int>();
    } else if (key == "split_rank") {
      sizes.split_rank = value.get<int>();
    } else if (key != "token") {
      throw std::runtime_error("unknown argument in groups.json: " + key);
    }
  }
  return sizes;
}

}  // namespace megalith::grid
