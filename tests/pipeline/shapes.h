#pragma once
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/pipeline/schedule.h"

#include "tests/test_data.h"

namespace megalith::pipeline {

inline std::ostream& operator<<(std::ostream& out, const ScheduleShape& s) {
  return out << "pp " << s.num_stages << " chunks " << s.num_chunks << " microbatches " << s.num_microbatches
             << " group " << s.group_size << (s.mode == ScheduleMode::training ? "" : " forward-only");
}

/// A reference, so that loops may run over parts of it.
inline const nlohmann::json& schedule_vectors() {
  static const nlohmann::json vectors = [] {
    std::ifstream file(MEGALITH_TEST_DATA "/schedules/schedules.json");
    return nlohmann::json::parse(file);
  }();
  return vectors;
}

/// The shape that an entry of the vectors names.
inline ScheduleShape shape_of(const nlohmann::json& entry) {
  return {.num_stages = entry.at("pp"),
          .num_chunks = entry.at("vpp"),
          .num_microbatches = entry.at("microbatches"),
          .group_size = entry.value("group_size", 0)};
}

/// The two lists of whole schedules in the vectors.
inline std::vector<nlohmann::json> schedule_entries() {
  const nlohmann::json& vectors = schedule_vectors();
  std::vector<nlohmann::json> entries = vectors.at("schedules");
  for (const nlohmann::json& entry : vectors.at("extra_schedules")) entries.push_back(entry);
  return entries;
}

/// The rule of legal training shapes, written down once more.
inline bool is_legal(int pp, int chunks, int microbatches, int group) {
  if (chunks == 1) return true;
  return pp > 1 && pp <= group && group <= microbatches && (microbatches % group == 0 || microbatches % group >= pp);
}

/// Every legal shape of up to 8 stages and 4 chunks, with the numbers of microbatches given.
inline std::vector<ScheduleShape> legal_shapes(const std::vector<int>& microbatches) {
  std::vector<ScheduleShape> shapes;
  for (int pp = 1; pp <= 8; ++pp) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      for (const int count : microbatches) {
        if (chunks == 1) shapes.push_back({pp, chunks, count, 0});
        for (int group = 1; chunks > 1 && group <= count; ++group) {
          if (is_legal(pp, chunks, count, group)) shapes.push_back({pp, chunks, count, group});
        }
      }
    }
  }
  return shapes;
}

inline std::vector<int> counting_to(int last) {
  std::vector<int> numbers;
  for (int i = 1; i <= last; ++i) numbers.push_back(i);
  return numbers;
}

}  // namespace megalith::pipeline
