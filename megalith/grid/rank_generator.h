#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/grid/masked_groups.h"

namespace megalith::grid {

/// The axes of a grid of ranks. In the expert grid tp stands for etp and dp for edp.
enum class Axis { tp, cp, ep, dp, pp };
inline constexpr std::array<Axis, 5> kAxes{Axis::tp, Axis::cp, Axis::ep, Axis::dp, Axis::pp};
/// By the bandwidth the axes need: the heaviest varies fastest, so its ranks are the nearest.
inline constexpr std::string_view kDefaultOrder = "tp-cp-ep-dp-pp";

std::string_view name_of(Axis axis);

/// One number per axis: sizes (each >= 1) or coordinates (each >= 0).
struct PerAxis {
  int tp = 0, cp = 0, ep = 0, dp = 0, pp = 0;
  int& operator[](Axis axis);
  int operator[](Axis axis) const;
  bool operator==(const PerAxis&) const = default;
};

/// The bijection between ranks and coordinates, and the groups along any set of axes. A pure function of sizes and
/// order.
///   rank = sum_i coord_i S_i,  coord_i = floor(rank / S_i) mod s_i,  S = prefix products of the sizes in axis order
class RankGenerator {
 public:
  /// `order` lists axes from the fastest-varying to the slowest, joined by '-', in any letter case. An axis of size 1
  /// may be left out and then comes last. Throws ConfigError: E_SIZE_NOT_POSITIVE, E_ORDER_UNKNOWN_AXIS,
  /// E_ORDER_DUPLICATE_AXIS, E_ORDER_MISSING_AXIS, E_EP_AND_CP (cp lives in the dense grid, ep in the expert grid).
  RankGenerator(const PerAxis& sizes, std::string_view order);

  int world_size() const { return world_size_; }
  const PerAxis& sizes() const { return sizes_; }
  const PerAxis& strides() const { return strides_; }
  /// All five axes, fastest first.
  const std::vector<Axis>& order() const { return order_; }
  std::string order_text() const;  ///< "tp-cp-ep-dp-pp"

  /// Both throw ConfigError outside the grid.
  int rank(const PerAxis& coordinates) const;
  PerAxis coordinates(int rank) const;
  /// The rank with the same share of the model in the first copy of it: that of coordinates 0 along cp and dp. Not
  /// above `rank`. Throws as coordinates().
  int in_first_copy(int rank) const;
  /// of_rank(rank) of every rank. Copies of the model are alike, so it is called for the first copy's ranks only.
  template <class OfRank>
  auto per_rank(OfRank&& of_rank) const {
    std::vector<decltype(of_rank(0))> all;
    for (int rank = 0; rank < world_size_; ++rank) {
      const int alike = in_first_copy(rank);
      all.push_back(alike < rank ? all[static_cast<std::size_t>(alike)] : of_rank(rank));
    }
    return all;
  }

  /// The groups along the axes of a token such as "tp" or "dp-cp"; the order inside the token means nothing.
  /// Throws ConfigError: E_TOKEN_UNKNOWN.
  MaskedGroups groups(std::string_view token) const;

 private:
  PerAxis sizes_;
  PerAxis strides_;
  std::vector<Axis> order_;
  int world_size_ = 1;
};

}  // namespace megalith::grid
