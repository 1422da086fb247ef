// Counts operator new on rank threads between steps of the threads transport: there must be none after the first steps.
// A program of its own, because it replaces operator new.
#include <array>
#include <cstdio>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/comm/row_cases.h"
#include "tests/support/count_allocations.h"

namespace megalith::comm {
namespace {

/// What a rank reads of the others' rows of 10 elements.
struct RowLists {
  RowLists(const World& world, std::size_t length) : pulls(10, 20), sums(20, 40) {
    std::vector<WantedRow> wanted(length, {WantedRow::Kind::row, {0, 3}});
    for (int i = 0; i < 9; ++i) wanted[static_cast<std::size_t>(i)].place = {i % world.size(), i};
    pulls.set(wanted);
    sums.set(std::vector<std::vector<WeightedPlace>>(20, std::vector<WeightedPlace>(length / 10, {{0, 1}})));
  }
  PullLists pulls;
  SumLists sums;
};

void step(World& world, const Group& neighbours, std::vector<float>& a, std::vector<float>& b, RowLists& lists) {
  Exec ex;
  const int n = world.size(), r = world.rank();
  const Index count = static_cast<Index>(a.size()) / n * n;
  const Tensor x(a.data(), {count}, DType::f32), y(b.data(), {count}, DType::f32);
  std::array<Index, 16> counts{};
  for (int i = 0; i < n; ++i) counts[static_cast<std::size_t>(i)] = count / n;
  const std::span<const Index> even(counts.data(), static_cast<std::size_t>(n));
  std::array<Pending, 8> messages;
  for (int lane = 0; lane < 4; ++lane) {
    messages[static_cast<std::size_t>(lane)] = recv(ex, world.all(), y.rows(lane * 10, 10), (r + n - 1) % n, lane);
    messages[static_cast<std::size_t>(4 + lane)] = send(ex, world.all(), x.rows(lane * 10, 10), (r + 1) % n, lane);
  }
  for (Pending& each : messages) each.wait(ex);
  for (const Index length : {Index{10}, count}) all_reduce(ex, neighbours, x.rows(0, length), Reduce::max).wait(ex);
  reduce_scatter(ex, world.all(), x, y.rows(0, count / n), Reduce::sum).wait(ex);
  all_gather(ex, world.all(), x.rows(count / n * r, count / n), x).wait(ex);
  all_to_all(ex, world.all(), x, even, y, even).wait(ex);
  broadcast(ex, world.all(), x, n - 1).wait(ex);
  const Tensor rows = x.rows(0, 1000).reshaped({100, 10}), to = y.rows(0, 200).reshaped({20, 10});
  gather_rows(ex, world.all(), rows, lists.pulls.pulls(), to).wait(ex);
  gather_sum_rows(ex, world.all(), rows, lists.sums.sums(), to, Write::accumulate).wait(ex);
  barrier(ex, world.all());
}

void rank_body(World& world) {
  std::vector<int> reversed;
  for (int rank = world.size(); rank-- > 0;) reversed.push_back(rank);
  const Group neighbours = world.group("reversed", reversed);
  std::vector<float> a(100000), b(100000);
  RowLists first(world, 9), lists(world, 20);  // longer in later steps
  for (int i = 0; i < 3; ++i) step(world, neighbours, a, b, first);
  long seen = 0;
  {
    const support::CountAllocations counter;
    for (int i = 0; i < 50; ++i) step(world, neighbours, a, b, lists);
    seen = counter.count();
  }
  if (seen != 0) throw InternalError(str(seen, " allocations in 50 steps: must be 0"));
}

}  // namespace
}  // namespace megalith::comm

int main() {
  try {
    for (const int ranks : {2, 3, 4}) megalith::comm::run_ranks(ranks, megalith::comm::rank_body, {.timeout_s = 60});
    std::puts("no allocation in steady state");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
