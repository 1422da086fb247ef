#include <chrono>
#include <thread>

#include "megalith/base/error.h"

#include "tests/comm/row_cases.h"

namespace megalith::comm {
namespace {

struct Floats {
  explicit Floats(Index count) : values(static_cast<std::size_t>(count)) {}
  Tensor tensor(DType dtype = DType::f32) { return {values.data(), {static_cast<Index>(values.size())}, dtype}; }
  std::vector<float> values;
};

void sum(World& world, Index count, DType dtype = DType::f32, Reduce reduce = Reduce::sum) {
  Exec ex;
  Floats data(count);
  all_reduce(ex, world.all(), data.tensor(dtype), reduce).wait(ex);
}

/// A rank that is busy elsewhere for longer than the others wait.
void stay_away() { std::this_thread::sleep_for(std::chrono::duration<double>(kMisuseTimeout_s + 1)); }

void other_count(World& world) { sum(world, world.rank() == 1 ? 127 : 128); }
void other_count_of_three(World& world) { sum(world, world.rank() == 0 ? 50001 : 50000); }
void other_dtype(World& world) { sum(world, 128, world.rank() == 1 ? DType::i32 : DType::f32); }
void other_reduce(World& world) { sum(world, 128, DType::f32, world.rank() == 1 ? Reduce::max : Reduce::sum); }

void other_operation(World& world) {
  Exec ex;
  Floats data(64);
  if (world.rank() == 0) {
    all_reduce(ex, world.all(), data.tensor(), Reduce::sum).wait(ex);
  } else {
    broadcast(ex, world.all(), data.tensor(), 0).wait(ex);
  }
}

void other_root(World& world) {
  Exec ex;
  Floats data(64);
  broadcast(ex, world.all(), data.tensor(), world.rank()).wait(ex);
  barrier(ex, world.all());
}

void swapped_sizes(World& world) {
  for (const Index count : {100, 200}) sum(world, world.rank() == 1 ? 300 - count : count);
}

/// Equal in all but the place in the source: sums of the wrong things, were it not seen.
void swapped_equals(World& world) {
  Exec ex;
  Floats a(100), b(100);
  const auto first = [&] { all_reduce(ex, world.all(), a.tensor(), Reduce::sum).wait(ex); };
  const auto second = [&] { all_reduce(ex, world.all(), b.tensor(), Reduce::sum).wait(ex); };
  if (world.rank() == 0) first();
  second();
  if (world.rank() == 1) first();
}

void swapped_groups(World& world) {
  Exec ex;
  const Group a = world.group("rows", {0, 1}), b = world.group("columns", {0, 1});
  Floats data(10);
  all_reduce(ex, world.rank() == 0 ? a : b, data.tensor(), Reduce::sum).wait(ex);
  all_reduce(ex, world.rank() == 0 ? b : a, data.tensor(), Reduce::sum).wait(ex);
}

void uneven_counts(World& world) {
  Exec ex;
  Floats in(4), out(world.rank() == 0 ? 4 : 5);
  const Index sent[] = {2, 2};
  const Index right[] = {2, 2}, wrong[] = {3, 2};
  all_to_all(ex, world.all(), in.tensor(), sent, out.tensor(), world.rank() == 0 ? right : wrong).wait(ex);
}

void throwing_rank(World& world) {
  if (world.rank() == 1) throw NonFiniteError("[loss] loss = nan: must be finite");
  sum(world, 128);
}

/// The failing rank has a receive posted whose memory goes while the error unwinds; its peer then posts the send.
void throwing_receiver(World& world) {
  Exec ex;
  Floats data(1000);
  if (world.rank() == 1) {
    const Pending receive = recv(ex, world.all(), data.tensor(), 0);
    throw NonFiniteError("[loss] loss = inf: must be finite");
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  send(ex, world.all(), data.tensor(), 1).wait(ex);
  barrier(ex, world.all());
}

void absent_rank(World& world) {
  if (world.rank() == 2) return stay_away();
  sum(world, 128);
}

void ended_rank(World& world) {
  if (world.rank() == 0) sum(world, 128);
}

void lost_send(World& world) {
  if (world.rank() != 0) return stay_away();
  Exec ex;
  Floats data(100003);
  send(ex, world.all(), data.tensor(), 1, 3).wait(ex);
}

void lost_recv(World& world) {
  if (world.rank() != 0) return stay_away();
  Exec ex;
  Floats data(10);
  recv(ex, world.all(), data.tensor(), 1).wait(ex);
}

void other_message(World& world) {
  Exec ex;
  Floats data(10 + world.rank());
  if (world.rank() == 0) {
    send(ex, world.all(), data.tensor(), 1).wait(ex);
  } else {
    recv(ex, world.all(), data.tensor(), 0).wait(ex);
  }
  barrier(ex, world.all());
}

const std::vector<MisuseCase>& cases() {
  using enum ExitCode;
  static const std::vector<MisuseCase> list = {
      {"OtherCount",
       2,
       collective,
       {"rank 0", "rank 1", "[all_reduce] group world of 2 ranks", "(sum, f32 x 127) #0", "(sum, f32 x 128) #0"},
       other_count},
      {"OtherCountOfThree",
       3,
       collective,
       {"rank 0", "group world of 3 ranks", "f32 x 50001) #0", "f32 x 50000) #0"},
       other_count_of_three},
      {"OtherDtype", 2, collective, {"[all_reduce] group world", "i32 x 128", "f32 x 128"}, other_dtype},
      {"OtherReduce",
       2,
       collective,
       {"[all_reduce] group world", "all_reduce(max, ", "all_reduce(sum, "},
       other_reduce},
      {"OtherOperation",
       2,
       collective,
       {"group world", "all_reduce(sum, f32 x 64) #0", "broadcast(f32 x 64 from member 0) #0"},
       other_operation},
      {"OtherRoot", 2, collective, {"group world", "broadcast(f32 x 64 from member"}, other_root},
      {"SwappedSizes", 2, collective, {"f32 x 100) #0", "f32 x 200) #0"}, swapped_sizes},
      {"SwappedEquals", 2, collective, {"f32 x 100) #0 at misuse_cases.cpp:", "at the same place"}, swapped_equals},
      {"SwappedGroups",
       2,
       hang,
       {"of 2 ranks: rank ", " s in all_reduce(sum, f32 x 10) #0", " for rank "},
       swapped_groups},
      {"UnevenCounts", 2, collective, {"[all_to_all] group world", "8 bytes", "12 "}, uneven_counts},
      {"ThrowingRank", 3, non_finite, {"rank 1: [loss] loss = nan: must be finite"}, throwing_rank},
      {"ThrowingReceiver", 2, non_finite, {"rank 1: [loss] loss = inf: must be finite"}, throwing_receiver},
      {"AbsentRank",
       3,
       hang,
       {"[all_reduce] group world of 3 ranks: rank ", "in all_reduce(sum, f32 x 128) #0", "for rank 2"},
       absent_rank},
      {"EndedRank", 2, hang, {"group world of 2 ranks: rank 0 waited", "for rank 1"}, ended_rank},
      {"LostSend",
       2,
       hang,
       {"[send] group world", "rank 0 waited 2", " s in send(f32 x 100003 to member 1, lane 3) #0", "for rank 1"},
       lost_send},
      {"LostRecv",
       2,
       hang,
       {"[recv] group world", "rank 0 waited 2", " s in recv(f32 x 10 from member 1, lane 0) #0", "for rank 1"},
       lost_recv},
      {"OtherMessage",
       2,
       collective,
       {"group world of 2 ranks", "send(f32 x 10 to member 1, lane 0) #0", "recv(f32 x 11 from member 0, lane 0) #0"},
       other_message},
  };
  return list;
}

}  // namespace

std::span<const MisuseCase> misuse_cases() {
  static const std::vector<MisuseCase> all = [] {
    std::vector<MisuseCase> list = cases();
    list.insert(list.end(), row_misuse_cases().begin(), row_misuse_cases().end());
    return list;
  }();
  return all;
}

}  // namespace megalith::comm
