#include "megalith/ops/cpu/echo_stages.h"

#include <algorithm>
#include <numeric>

namespace megalith::ops::cpu {
namespace {

constexpr int kKeyShift = 32;
constexpr std::int64_t kGreatest = 0x7fffffff;

/// From the slots of one expert, a linked list in ascending order: what is left in each goes to the source ranks with
/// pairs left, both in ascending order.
void share_rest(const EchoSizes& sizes, const ShareSlots& args, Index expert) {
  Index source = -1;
  std::int64_t pairs = 0;  // of `source`, that go to no slot yet
  for (std::int64_t slot = args.first[expert]; slot >= 0; slot = args.next[slot]) {
    while (args.left[slot] > 0) {
      while (pairs == 0) {
        ++source;
        pairs = args.counts[source * sizes.experts + expert];
        for (std::int64_t k = args.first[expert]; k >= 0; k = args.next[k])
          pairs -= args.take[source * sizes.all_slots + k];
      }
      const std::int64_t moved = std::min(pairs, args.left[slot]);
      args.take[source * sizes.all_slots + slot] += static_cast<std::int32_t>(moved);
      args.left[slot] -= moved;
      pairs -= moved;
    }
  }
}

/// Against its own target: the N mod R most loaded ranks have one pair more.
void set_deviations(const EchoSizes& sizes, const ExactMoves& of) {
  const std::int64_t sum = std::accumulate(of.load, of.load + sizes.ranks, std::int64_t{0});
  sort_descending(of.load, sizes.ranks, of.keys);
  for (Index i = 0; i < sizes.ranks; ++i) {
    const Index rank = index_of_key(of.keys[i]);
    of.deviation[rank] = of.load[rank] - sum / sizes.ranks - (i < sum % sizes.ranks ? 1 : 0);
  }
}

/// How many of the largest of `own` have `pairs` together, which all have. Changes nothing.
Index experts_for(std::int64_t pairs, std::int64_t* own, Index local) {
  Index count = 0;
  for (; pairs > 0; ++count) {
    std::int64_t& largest = *std::max_element(own, own + local);
    pairs -= largest;
    largest = ~largest;  // negative: counted
  }
  for (Index i = 0; i < local; ++i) own[i] = own[i] < 0 ? ~own[i] : own[i];
  return count;
}

/// The S largest entries of a rank, in order.
class LargestMoves {
 public:
  LargestMoves(Index slots, const std::int64_t* position) : slots_(slots), position_(position) {}

  void add(const EchoMove& move) {
    Index at = std::min(count_, slots_);
    while (at > 0 && is_before(move, best_[at - 1])) --at;
    if (at == slots_) return;
    count_ = std::min(count_ + 1, slots_);
    std::copy_backward(best_ + at, best_ + count_ - 1, best_ + count_);
    best_[at] = move;
  }
  Index count() const { return count_; }
  const EchoMove& operator[](Index i) const { return best_[i]; }

 private:
  bool is_before(const EchoMove& a, const EchoMove& b) const {
    return a.pairs != b.pairs ? a.pairs > b.pairs : position_[a.expert] < position_[b.expert];
  }
  Index slots_, count_ = 0;
  const std::int64_t* position_;
  EchoMove best_[kMaxEchoSlots];
};

}  // namespace

void sort_descending(const std::int64_t* values, Index count, std::int64_t* keys) {
  for (Index i = 0; i < count; ++i) keys[i] = ((kGreatest - values[i]) << kKeyShift) | i;
  std::sort(keys, keys + count);  // no two keys are equal
}

void spill_of_rank(const std::int64_t* total, Index local, std::int64_t avg, std::int64_t* spill, std::int64_t* keys) {
  for (Index i = 0; i < local; ++i) keys[i] = (total[i] << kKeyShift) | i;
  std::sort(keys, keys + local);
  std::int64_t sum = 0, before = 0;
  for (Index i = 0; i < local; ++i) {
    const Index expert = index_of_key(keys[i]);
    sum += total[expert];
    const std::int64_t above = std::max<std::int64_t>(0, sum - avg);
    spill[expert] = above - before;
    before = above;
  }
}

Index overlap_moves(const EchoSizes& sizes, const std::int64_t* spill, const std::int64_t* spill_keys,
                    const std::int64_t* spare, const std::int64_t* spare_keys, EchoMove* moves) {
  Index count = 0, chunk = 0;
  std::int64_t left = spill[index_of_key(spill_keys[0])];
  for (Index bucket = 0; bucket < sizes.ranks; ++bucket) {
    const Index rank = index_of_key(spare_keys[bucket]);
    for (std::int64_t room = spare[rank]; room > 0 && left > 0;) {
      const std::int64_t pairs = std::min(left, room);
      moves[count++] = {index_of_key(spill_keys[chunk]), rank, pairs};
      room -= pairs;
      left -= pairs;
      if (left == 0 && ++chunk < sizes.experts) left = spill[index_of_key(spill_keys[chunk])];
    }
  }
  return count;
}

MovesFound exact_moves(const EchoSizes& sizes, const ExactMoves& of) {
  const Index ranks = sizes.ranks, local = sizes.local();
  set_deviations(sizes, of);
  std::copy_n(of.total, sizes.experts, of.left);
  std::fill_n(of.spill, sizes.experts, 0);
  std::fill_n(of.spare, ranks, 0);
  if (of.wanted != nullptr) std::fill_n(of.wanted, ranks, 0);
  MovesFound found;
  while (true) {
    const Index needy = std::min_element(of.deviation, of.deviation + ranks) - of.deviation;
    const Index most = std::max_element(of.deviation, of.deviation + ranks) - of.deviation;
    if (of.deviation[needy] == 0) return found;
    of.spare[needy] = -of.deviation[needy];
    of.deviation[needy] = 0;
    std::int64_t* const own = of.left + most * local;  // it has received nothing: a rank that has is complete
    std::int64_t rest = of.spare[needy];
    Index taken = 0;
    for (; rest > 0 && taken < sizes.slots(); ++taken) {
      const Index largest = std::max_element(own, own + local) - own;
      const std::int64_t pairs = std::min(rest, own[largest]);
      of.moves[found.count++] = {most * local + largest, needy, pairs};
      own[largest] -= pairs;
      of.spill[most * local + largest] += pairs;
      of.deviation[most] -= pairs;  // below 0 it lacks some itself
      rest -= pairs;
    }
    found.dropped += rest;
    if (of.wanted != nullptr) of.wanted[needy] = static_cast<std::int32_t>(taken + experts_for(rest, own, local));
  }
}

std::int64_t fill_slots(const EchoSizes& sizes, const FillSlots& args) {
  const Index slots = sizes.slots();
  std::fill_n(args.src, sizes.all_slots, -1);
  std::fill_n(args.cap, sizes.all_slots, 0);
  if (args.wanted != nullptr) std::fill_n(args.wanted, sizes.ranks, 0);
  std::int64_t dropped = 0;
  for (Index begin = 0; begin < args.num_moves;) {
    const std::int64_t rank = args.moves[begin].rank;
    LargestMoves largest(slots, args.position);
    Index end = begin;
    for (; end < args.num_moves && args.moves[end].rank == rank; ++end) {
      const EchoMove& move = args.moves[end];
      dropped += move.pairs;
      if (move.pairs < args.min_pairs) continue;
      largest.add(move);
      if (args.wanted != nullptr) ++args.wanted[rank];
    }
    begin = end;
    for (Index i = 0; i < largest.count(); ++i) {
      args.src[rank * slots + i] = static_cast<std::int32_t>(largest[i].expert);
      args.cap[rank * slots + i] = static_cast<std::int32_t>(largest[i].pairs);
      dropped -= largest[i].pairs;
    }
  }
  return dropped;
}

void share_slots(const EchoSizes& sizes, const ShareSlots& args) {
  const Index slots = sizes.all_slots;
  std::fill_n(args.take, sizes.ranks * slots, 0);
  std::fill_n(args.first, sizes.experts, -1);
  for (Index slot = slots - 1; slot >= 0; --slot) {  // from the last: so that lists ascend
    const std::int64_t expert = args.src[slot];
    args.left[slot] = args.cap[slot];
    if (expert < 0) continue;
    args.next[slot] = args.first[expert];
    args.first[expert] = slot;
    for (Index source = 0; source < sizes.ranks; ++source) {
      const std::int64_t pairs = args.counts[source * sizes.experts + expert];
      // In 64 bits and whole numbers: a ratio in f32 gives another floor for one triple in a thousand.
      const std::int64_t share = pairs * args.cap[slot] / args.total[expert];
      args.take[source * slots + slot] = static_cast<std::int32_t>(share);
      args.left[slot] -= share;
    }
  }
  if (args.breadth != nullptr) std::copy_n(args.take, sizes.ranks * slots, args.breadth);
  if (args.room != nullptr)
    std::transform(args.left, args.left + slots, args.room,
                   [](std::int64_t v) { return static_cast<std::int32_t>(v); });
  for (Index expert = 0; expert < sizes.experts; ++expert) share_rest(sizes, args, expert);
}

}  // namespace megalith::ops::cpu
