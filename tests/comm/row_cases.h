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

/// Matrices [rows, width] of each member, results [out_rows, width].
struct RowSizes {
  Index rows = 0, width = 0, out_rows = 0;
};
struct SumOptions {
  enum class Weights { none, given };
  Write write = Write::overwrite;
  Weights weights = Weights::given;
};

/// Which rows a member wants: 0 none, 1 zeros only, 2 random rows, 3 one row many times, 4 all from one member, 5 its
/// own rows, 6 lists on odd members only.
inline constexpr int kRowPatterns = 7;

/// A tensor that other members' kernels can read: rank threads take memory of 64 KiB and more in reach of each other.
Tensor tensor_in_reach(Exec& ex, const Shape& shape, DType dtype);

/// Make a call on the device of `ex`, and compare its result with that of a loop on the host, to the bit. Throw at the
/// first difference. Collective over the group.
void check_gather_rows(Exec& ex, const Group& group, DType dtype, const RowSizes& sizes, int pattern);
void check_gather_sum_rows(Exec& ex, const Group& group, DType dtype, const RowSizes& sizes, int pattern,
                           const SumOptions& options);

/// A small gather_rows, and a sum, of all of two or more ranks, without a barrier before the call.
void gather_small_rows(World& world);
void sum_small_rows(World& world);

}  // namespace megalith::comm
