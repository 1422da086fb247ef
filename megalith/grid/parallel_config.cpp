#include "megalith/grid/parallel_config.h"

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/checks.h"

namespace megalith::grid {
namespace {

struct Size {
  std::string_view name;
  int value;
};

/// The sizes of one grid multiplied: as text for messages, and as a number.
struct Product {
  std::string factors;     // "tp 4 * cp 1 * pp 8"
  std::int64_t value = 1;  // kTooLarge when it does not fit
  std::string text() const;
};
constexpr std::int64_t kTooLarge = std::numeric_limits<std::int64_t>::max();

std::string Product::text() const { return value == kTooLarge ? str("more than ", kTooLarge) : str(value); }

Product product(std::initializer_list<Size> sizes) {
  Product p;
  for (const Size& size : sizes) {
    if (!p.factors.empty()) p.factors += " * ";
    p.factors += str(size.name, ' ', size.value);
    if (__builtin_mul_overflow(p.value, std::int64_t{size.value}, &p.value)) p.value = kTooLarge;
  }
  return p;
}

/// The size that the other axes leave for data parallelism.
int remaining(int world_size, const Product& others, std::string_view grid) {
  if (world_size % others.value != 0) {
    throw ConfigError(str("E_WORLD_NOT_DIVISIBLE_", grid, ": world_size (", world_size, ") is not divisible by ",
                          others.text(), " (", others.factors, ")"));
  }
  return static_cast<int>(world_size / others.value);
}

void require_product(int world_size, const Product& all, std::string_view grid) {
  if (all.value == world_size) return;
  throw ConfigError(
      str("E_PRODUCT_MISMATCH_", grid, ": ", all.factors, " = ", all.text(), ", world_size is ", world_size));
}

void check_pipeline(const ResolvedSizes& sizes) {
  if (sizes.vpp && sizes.pp == 1) {
    throw ConfigError(str("E_VPP_NEEDS_PP: virtual pipeline size ", *sizes.vpp, " needs pp > 1, pp is 1"));
  }
  if (sizes.split_rank && (*sizes.split_rank < 1 || *sizes.split_rank >= sizes.pp)) {
    throw ConfigError(str("E_SPLIT_RANK_RANGE: split rank ", *sizes.split_rank, " is outside 1..", sizes.pp - 1,
                          sizes.pp == 1 ? " (one stage cannot be split)" : ""));
  }
}

/// The pipeline groups of a grid are [f, f + s, f + 2s, ...] for every rank f with pp coordinate 0, ascending, and s
/// the stride of pp decides which ranks these are. So the lists of two grids over one world are equal when the strides
/// are, and with more than one stage only then: no list is built.
bool same_pipeline_groups(const RankGenerator& dense, const RankGenerator& expert) {
  return dense.sizes().pp == 1 || dense.strides().pp == expert.strides().pp;
}

}  // namespace

ResolvedSizes resolve(const ParallelSizes& asked) {
  const int n = asked.world_size;
  const Size given[] = {{"world_size", n},
                        {"tp", asked.tp},
                        {"cp", asked.cp},
                        {"dp", asked.dp.value_or(1)},
                        {"pp", asked.pp},
                        {"etp", asked.etp.value_or(1)},
                        {"ep", asked.ep},
                        {"edp", asked.edp.value_or(1)},
                        {"vpp", asked.vpp.value_or(1)}};
  for (const Size& size : given) require_size(size.name, size.value);
  ResolvedSizes r;
  r.world_size = n;
  r.tp = asked.tp;
  r.cp = asked.cp;
  r.pp = asked.pp;
  r.etp = asked.etp.value_or(asked.tp);
  r.ep = asked.ep;
  r.vpp = asked.vpp;
  r.split_rank = asked.split_rank;
  r.order = asked.order;

  r.dp = remaining(n, product({{"tp", r.tp}, {"cp", r.cp}, {"pp", r.pp}}), "DENSE");
  if (asked.dp) require_product(n, product({{"tp", r.tp}, {"cp", r.cp}, {"dp", *asked.dp}, {"pp", r.pp}}), "DENSE");
  r.edp = remaining(n, product({{"etp", r.etp}, {"ep", r.ep}, {"pp", r.pp}}), "EXPERT");
  if (asked.edp) {
    require_product(n, product({{"etp", r.etp}, {"ep", r.ep}, {"edp", *asked.edp}, {"pp", r.pp}}), "EXPERT");
  }
  check_pipeline(r);

  const RankGenerator dense = dense_grid(r);  // these two check the order
  const RankGenerator expert = expert_grid(r);
  if (!same_pipeline_groups(dense, expert)) {
    throw ConfigError(
        str("E_PP_GROUPS_DIFFER: pipeline groups of the dense grid and of the expert grid differ under order '",
            asked.order, "'"));
  }
  r.order = dense.order_text();
  return r;
}

RankGenerator dense_grid(const ResolvedSizes& sizes) {
  return {{.tp = sizes.tp, .cp = sizes.cp, .ep = 1, .dp = sizes.dp, .pp = sizes.pp}, sizes.order};
}

RankGenerator expert_grid(const ResolvedSizes& sizes) {
  return {{.tp = sizes.etp, .cp = 1, .ep = sizes.ep, .dp = sizes.edp, .pp = sizes.pp}, sizes.order};
}

bool has_same_tensor_groups(const ResolvedSizes& sizes) {
  if (sizes.tp != sizes.etp) return false;
  return sizes.tp == 1 || dense_grid(sizes).strides().tp == expert_grid(sizes).strides().tp;
}

}  // namespace megalith::grid
