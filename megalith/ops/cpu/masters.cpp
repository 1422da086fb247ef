#include <atomic>
#include <cstring>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/master_blocks.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/masters_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// The split masters from an element on.
struct Halves {
  bfloat16* copy;
  std::uint16_t* low;
  std::uint64_t* carries;
  Index first_carry;

  Halves(const MasterValues& masters, Index begin)
      : copy(masters.copy.data<bfloat16>() + begin),
        low(static_cast<std::uint16_t*>(masters.low.raw()) + begin),
        carries(masters.carries.data<std::uint64_t>()),
        first_carry(masters.first_carry + begin) {}

  // Elements of two threads may share a word.
  std::atomic_ref<std::uint64_t> word(Index i) const {
    return std::atomic_ref(carries[(first_carry + i) / MasterValues::kCarries]);
  }
  std::uint64_t bit(Index i) const { return std::uint64_t{1} << ((first_carry + i) % MasterValues::kCarries); }
};

}  // namespace

// Carries are rare: kernels without branches do the rest, and tell whether there are any.

void join_block(const MasterValues& masters, Index begin, Index count, float* values) {
  const Halves halves(masters, begin);
  if (!kernels<float>().optimizer.join(halves.copy, halves.low, values, count)) return;
  for (Index i = 0; i < count; ++i) {
    SplitF32 split{halves.copy[i].bits, halves.low[i]};
    if (!split.needs_carry()) continue;
    split.carry = (halves.word(i).load(std::memory_order_relaxed) & halves.bit(i)) != 0;
    values[i] = split.joined();
  }
}

void split_block(const float* values, const MasterValues& masters, Index begin, Index count) {
  const Halves halves(masters, begin);
  if (!kernels<float>().optimizer.split(values, halves.copy, halves.low, count)) return;
  for (Index i = 0; i < count; ++i) {
    const SplitF32 split = SplitF32::of(values[i]);
    if (!split.needs_carry()) continue;
    if (split.carry)
      halves.word(i).fetch_or(halves.bit(i), std::memory_order_relaxed);
    else
      halves.word(i).fetch_and(~halves.bit(i), std::memory_order_relaxed);
  }
}

void join_masters(const MasterValues& masters, const Tensor& values) {
  const Index n = values.numel();
  parallel_pieces(n, kPiece, n,
                  [&](Index begin, Index count) { join_block(masters, begin, count, values.data<float>() + begin); });
}

void split_masters(const Tensor& values, const MasterValues& masters) {
  const Index n = values.numel();
  parallel_pieces(n, kPiece, n,
                  [&](Index begin, Index count) { split_block(values.data<float>() + begin, masters, begin, count); });
}

}  // namespace megalith::ops::cpu
