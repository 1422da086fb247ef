#pragma once
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "megalith/ops/gemm_chooser.h"

namespace megalith::support {

inline const ops::GemmPlatform kH200{.gpu = "NVIDIA H200", .capability = "9.0", .library = "cuBLASLt 13.1.0"};
inline const ops::GemmPlatform kA100{.gpu = "NVIDIA A100-SXM4-80GB", .capability = "8.0", .library = "cuBLASLt 13.1.0"};

/// A product that differs from others by its rows.
inline ops::GemmProblem product(Index rows) { return {.m = rows, .n = 768, .k = 3072}; }

inline ops::GemmTable gemm_table(const ops::GemmPlatform& platform,
                                 const std::map<Index, std::int64_t>& algorithm_by_rows) {
  ops::GemmTable table{.platform = platform, .products = {}};
  for (const auto& [rows, id] : algorithm_by_rows) table.products[product(rows)] = {.id = id, .tile = 1};
  return table;
}

/// A library without a GPU: offers algorithms 1 to 9 for every product, puts 1 first and finds `best` the fastest.
class FakeGemmLibrary final : public ops::GemmChooser {
 public:
  FakeGemmLibrary(ops::GemmPlatform platform, std::vector<Index> rows, std::int64_t best)
      : platform_(std::move(platform)), best_(best) {
    for (const Index r : rows) met_.insert(product(r));
  }
  ops::GemmTable current() const override {
    ops::GemmTable table{.platform = platform_, .products = {}};
    for (const ops::GemmProblem& problem : met_) {
      const auto used = used_.products.find(problem);
      table.products[problem] = used == used_.products.end() ? ops::GemmAlgorithm{.id = 1, .tile = 1} : used->second;
    }
    return table;
  }
  bool offers(const ops::GemmProblem&, const ops::GemmAlgorithm& algorithm) override {
    return algorithm.id >= 1 && algorithm.id <= 9;
  }
  ops::GemmAlgorithm fastest(const ops::GemmProblem& problem, std::span<std::byte>) override {
    timed.push_back(problem.m);
    return {.id = best_, .tile = 1};
  }
  void use(const ops::GemmTable& table) override { used_ = table; }

  std::vector<Index> timed;  ///< rows of the products that were

 private:
  ops::GemmPlatform platform_;
  std::int64_t best_;
  std::set<ops::GemmProblem> met_;
  ops::GemmTable used_;
};

}  // namespace megalith::support
