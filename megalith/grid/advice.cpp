#include "megalith/grid/advice.h"

#include <cstdint>
#include <limits>
#include <numeric>

#include "megalith/base/str.h"

namespace megalith::grid {
namespace {

/// A product, or nothing where it has no place in an int, as numbers of ranks must.
std::optional<std::int64_t> ranks_of(int a, int b, int c) {
  std::int64_t all = a;
  for (const int factor : {b, c}) {
    if (__builtin_mul_overflow(all, std::int64_t{factor}, &all)) return std::nullopt;
  }
  return all <= std::numeric_limits<int>::max() ? std::optional(all) : std::nullopt;
}

std::string min_ranks(const ParallelSizes& s) {
  const auto dense = ranks_of(s.tp, s.cp, s.pp), expert = ranks_of(s.etp.value_or(s.tp), s.ep, s.pp);
  if (!dense || !expert) return "";
  const std::int64_t least = std::lcm(*dense, *expert);
  return least <= std::numeric_limits<int>::max() ? str("; the least number of ranks is ", least) : "";
}

/// The axes of an order but one, joined by '-'.
std::string without(std::string_view order, Axis axis) {
  std::string others;
  const RankGenerator axes({.tp = 1, .cp = 1, .ep = 1, .dp = 1, .pp = 1}, order);
  for (const Axis other : axes.order()) {
    if (other != axis) others += str(others.empty() ? "" : "-", name_of(other));
  }
  return others;
}

/// With pp as the slowest axis its stride is world_size / pp in both grids.
std::string pp_last(const ParallelSizes& s) {
  return str("; the nearest legal order has pp last: ", without(s.order, Axis::pp), "-pp");
}

}  // namespace

std::string advice(const ParallelSizes& asked, std::string_view error) {
  if (error.starts_with("E_WORLD_NOT_DIVISIBLE_")) return min_ranks(asked);
  if (error.starts_with("E_PP_GROUPS_DIFFER")) return pp_last(asked);
  return "";
}

std::string_view without_code(std::string_view error) {
  const std::size_t end = error.starts_with("E_") ? error.find(": ") : std::string_view::npos;
  return end == std::string_view::npos ? error : error.substr(end + 2);
}

std::string tp_first(std::string_view order) { return "tp-" + without(order, Axis::tp); }

}  // namespace megalith::grid
