#pragma once
#include <optional>
#include <span>
#include <vector>

#include "megalith/comm/row_lists.h"

#include "tests/comm/transport_cases.h"

namespace megalith::comm {

/// gather_rows and gather_sum_rows: part of transport_cases().
std::span<const TransportCase> row_transport_cases();
/// Lists that name what does not exist: part of misuse_cases().
std::span<const MisuseCase> row_misuse_cases();

/// What a row of the result of gather_rows holds afterwards.
struct WantedRow {
  enum class Kind { left, zeros, row } kind = Kind::left;
  RowPlace place = {};  ///< of `row`
};

/// Lists in host memory, with room for as many entries as there can be.
struct PullLists {
  PullLists(Index max_pulls, Index out_rows);
  /// Writes the lists for these rows of the result: distinct places in the order of their first appearance.
  void set(std::span<const WantedRow> wanted);
  RowPulls pulls();  ///< views of them
  std::vector<std::int32_t> counts, sources, begin, wants;
};

/// The places that a row of the result of gather_sum_rows sums, with their weights.
struct WeightedPlace {
  RowPlace place;
  float weight = 1;
};
struct SumLists {
  SumLists(Index out_rows, Index max_terms);
  void set(std::span<const std::vector<WeightedPlace>> rows);
  RowSums sums();  ///< views of them, with weights in f32
  std::vector<std::int32_t> begin, places;
  std::vector<float> weights;
};

}  // namespace megalith::comm
