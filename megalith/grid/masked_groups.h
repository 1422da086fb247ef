#pragma once
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace megalith::grid {

/// Groups of one size over the ranks of a world, stored flat: group g is ranks()[g*group_size .. (g+1)*group_size).
class GroupList {
 public:
  GroupList(std::vector<int> ranks, int group_size) : ranks_(std::move(ranks)), group_size_(group_size) {}
  int size() const { return static_cast<int>(ranks_.size()) / group_size_; }
  int group_size() const { return group_size_; }
  std::span<const int> operator[](int group) const {
    const auto width = static_cast<std::size_t>(group_size_);
    return std::span(ranks_).subspan(static_cast<std::size_t>(group) * width, width);
  }
  const std::vector<int>& ranks() const { return ranks_; }
  bool operator==(const GroupList&) const = default;

 private:
  std::vector<int> ranks_;
  int group_size_;
};

/// One axis of a grid of ranks; the groups run along the masked axes.
struct MaskedAxis {
  int size = 1;
  bool masked = false;
};

/// 1, s_0, s_0 s_1, ..., s_0..s_{k-1}: the stride of every axis, then the number of ranks.
/// Throws ConfigError on a size below 1 and when the number of ranks does not fit an int.
std::vector<int> prefix_products(std::span<const int> sizes);

/// The partition of ranks 0..n-1 into groups that share every unmasked coordinate. Axes are given fastest first:
///   rank  = sum_i coord_i S_i          S = prefix products over all sizes
///   group = sum_unmasked coord_i U_i   U = prefix products over the unmasked sizes only; masked ones alike: the index
/// So members ascend inside a group and groups ascend by their first member. Nothing is stored per rank: a query costs
/// O(axes), a group O(its size), all groups O(n).
/// Source: the rank generator of Megatron-LM core; Shoeybi et al. 2019, arXiv:1909.08053, Figure 8 for the groups.
class MaskedGroups {
 public:
  /// Throws ConfigError as prefix_products does.
  explicit MaskedGroups(std::span<const MaskedAxis> axes);

  int num_groups() const { return num_groups_; }
  int group_size() const { return group_size_; }
  int world_size() const { return num_groups_ * group_size_; }

  /// Which group a rank in [0, world_size()) is in, and where in it.
  int group_of(int rank) const { return gather(unmasked_, rank); }
  int index_of(int rank) const { return gather(masked_, rank); }
  /// Member j of group g is first(g) + offset(j); offset(0) is 0.
  int first(int group) const { return spread(unmasked_, group); }
  int offset(int index) const { return spread(masked_, index); }

  std::vector<int> offsets() const;  ///< of all members

  GroupList all() const { return groups_of(offsets()); }
  /// All groups, of each only the members at some (at least one) of the offsets.
  GroupList groups_of(std::span<const int> offsets) const;

 private:
  /// A run of neighbouring axes that are all masked or all unmasked: they behave as one axis.
  struct Run {
    int size, stride;
  };
  static int gather(const std::vector<Run>& runs, int rank);
  static int spread(const std::vector<Run>& runs, int index);

  std::vector<Run> unmasked_, masked_;
  int num_groups_ = 1;
  int group_size_ = 1;
};

}  // namespace megalith::grid
