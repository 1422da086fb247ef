#include "megalith/grid/masked_groups.h"

#include <limits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/checks.h"

namespace megalith::grid {

std::vector<int> prefix_products(std::span<const int> sizes) {
  constexpr int kMaxProduct = std::numeric_limits<int>::max();
  std::vector<int> products{1};
  for (const int size : sizes) {
    require_size("axis size", size);
    if (size > kMaxProduct / products.back()) {
      throw ConfigError(
          str("[grid] ranks = ", products.back(), " * ", size, ": a grid has at most ", kMaxProduct, " ranks"));
    }
    products.push_back(products.back() * size);
  }
  return products;
}

MaskedGroups::MaskedGroups(std::span<const MaskedAxis> axes) {
  std::vector<int> sizes;
  for (const MaskedAxis& axis : axes) sizes.push_back(axis.size);
  const std::vector<int> strides = prefix_products(sizes);
  const std::vector<Run>* last = nullptr;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    if (sizes[i] == 1) continue;
    std::vector<Run>& runs = axes[i].masked ? masked_ : unmasked_;
    if (last == &runs) {
      runs.back().size *= sizes[i];
    } else {
      runs.push_back({sizes[i], strides[i]});
    }
    last = &runs;
    (axes[i].masked ? group_size_ : num_groups_) *= sizes[i];
  }
}

int MaskedGroups::gather(const std::vector<Run>& runs, int rank) {
  int index = 0;
  int weight = 1;
  for (const Run& run : runs) {
    index += rank / run.stride % run.size * weight;
    weight *= run.size;
  }
  return index;
}

int MaskedGroups::spread(const std::vector<Run>& runs, int index) {
  int rank = 0;
  for (const Run& run : runs) {
    rank += index % run.size * run.stride;
    index /= run.size;
  }
  return rank;
}

std::vector<int> MaskedGroups::offsets() const {
  std::vector<int> all;
  for (int j = 0; j < group_size_; ++j) all.push_back(offset(j));
  return all;
}

GroupList MaskedGroups::groups_of(std::span<const int> offsets) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(num_groups_) * offsets.size());
  for (int g = 0; g < num_groups_; ++g) {
    const int base = first(g);
    for (const int offset : offsets) ranks.push_back(base + offset);
  }
  return {std::move(ranks), static_cast<int>(offsets.size())};
}

}  // namespace megalith::grid
