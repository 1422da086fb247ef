#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

namespace megalith::corpus {

/// Sets of connected elements, 8 bytes each. Each set is known by its best element. `is_better(a, b)` is a total order,
/// so that the result does not depend on the order of the pairs.
template <class IsBetter>
class UnionFind {
 public:
  UnionFind(std::uint64_t size, IsBetter is_better) : parents_(size), is_better_(std::move(is_better)) {
    std::iota(parents_.begin(), parents_.end(), std::uint64_t{0});
  }

  /// The best element of the set of `element`.
  std::uint64_t best(std::uint64_t element) {
    while (parents_[element] != element) element = parents_[element] = parents_[parents_[element]];
    return element;
  }
  void connect(std::uint64_t a, std::uint64_t b) {
    a = best(a);
    b = best(b);
    if (a == b) return;
    if (is_better_(a, b))
      parents_[b] = a;
    else
      parents_[a] = b;
  }

 private:
  std::vector<std::uint64_t> parents_;
  IsBetter is_better_;
};

}  // namespace megalith::corpus
