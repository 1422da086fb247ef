#include "megalith/comm/group.h"

#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/comm/world.h"

namespace megalith::comm {
namespace {

template <class E, class F>
std::string text_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("another class: ") + error.what();
  }
  return "nothing was thrown";
}

Group group_of_four() {
  static const auto world = dry_world(1, 8);
  return world->group("pp", {0, 1, 2, 3});
}

TEST(GroupChecks, SayWhatIsWrong) {
  Exec ex;
  const Group pp = group_of_four();
  const Tensor x(nullptr, {8, 2}, DType::f32), part(nullptr, {2, 2}, DType::f32);
  EXPECT_EQ(text_of<ShapeError>([&] { (void)send(ex, pp, x, 4); }), "[send] peer 4 is outside group pp of 4 ranks");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)recv(ex, pp, x, -1); }), "[recv] peer -1 is outside group pp of 4 ranks");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)send(ex, pp, x, 1); }), "[send] peer 1 of group pp is this rank itself");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)send(ex, pp, x, 0, 1023); }), "[send] lane = 1023: must be from 0 to 1022");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)broadcast(ex, pp, x, 4); }),
            "[broadcast] root 4 is outside group pp of 4 ranks");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_reduce(ex, pp, Tensor(), Reduce::sum); }),
            "[all_reduce] there is no tensor 'tensor'");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_gather(ex, pp, x, part); }),
            "[all_gather] shapes [2, 2] and [8, 2]: the first dimension must be 4 times as long, the others equal");
  EXPECT_EQ(text_of<ShapeError>([&] {
              (void)reduce_scatter(ex, pp, x, Tensor(nullptr, {2, 2}, DType::f64), Reduce::sum);
            }),
            "[reduce_scatter] dtype = f32 in and f64 out: must be the same");
}

TEST(GroupChecks, AllToAllCounts) {
  Exec ex;
  const Group pp = group_of_four();
  const Tensor x(nullptr, {8, 2}, DType::f32);
  const Index even[] = {2, 2, 2, 2}, few[] = {4, 4}, negative[] = {10, -2, 0, 0}, seven[] = {2, 2, 2, 1},
              own[] = {1, 3, 2, 2};
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_to_all(ex, pp, x, few, x, even); }),
            "[all_to_all] send_counts has 2 entries: must have one for each of 4 ranks");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_to_all(ex, pp, x, negative, x, even); }),
            "[all_to_all] send_counts has an entry -2: must be at least 0");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_to_all(ex, pp, x, even, x, seven); }),
            "[all_to_all] recv tensor of shape [8, 2]: must have 7 rows, the sum of recv_counts");
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_to_all(ex, pp, x, even, x, own); }),
            "[all_to_all] sends 2 rows to itself and receives 3: must be equal");
}

TEST(GroupChecks, OverlapIsRefused) {
  Exec ex;
  const Group pp = group_of_four();
  std::array<float, 32> memory{};
  const Tensor out(memory.data(), {32}, DType::f32);
  EXPECT_EQ(text_of<ShapeError>([&] { (void)all_gather(ex, pp, out.rows(0, 8), out); }),
            "[all_gather] in and out share memory: must be apart, or one the rank's own part of the other");
  EXPECT_THROW((void)all_gather(ex, pp, out.rows(8, 8), out),
               InternalError);  // its own part: only the dry world objects
}

TEST(DryWorld, RecordsAndDoesNotCommunicate) {
  Recording recording;
  recording.begin_phase();
  Exec ex(Device::cpu, recording);
  const auto world = dry_world(1, 8);
  const Group pp = world->group("pp", {0, 1, 2, 3});
  const Tensor x = ex.tensor({4}, DType::f32), all = ex.tensor({16}, DType::f32), after = ex.tensor({4}, DType::f32);
  Pending gather = all_gather(ex, pp, x, all);
  Pending message = recv(ex, pp, after, 0);
  gather.wait(ex);
  message.wait(ex);
  message.wait(ex);  // the second does nothing
  ASSERT_EQ(recording.ops().size(), 4u);
  EXPECT_STREQ(recording.ops()[0].name, "all_gather");
  EXPECT_STREQ(recording.ops()[1].name, "recv");
  EXPECT_STREQ(recording.ops()[2].name, "wait");
  EXPECT_EQ(recording.ops()[2].reads, (std::vector<TensorId>{x.id(), all.id()}));
  EXPECT_EQ(recording.tensors()[static_cast<std::size_t>(x.id())].last, 2);
  EXPECT_EQ(recording.tensors()[static_cast<std::size_t>(after.id())].last, 3);
  EXPECT_EQ(pp.counters()[Op::all_gather].calls, 0);
  Exec runs;
  std::array<float, 4> memory{};
  EXPECT_EQ(
      text_of<InternalError>([&] { (void)all_reduce(runs, pp, Tensor(memory.data(), {4}, DType::f32), Reduce::sum); }),
      "[all_reduce] group pp of 4 ranks: a dry world only records, it cannot communicate: pass an Exec that records");
}

TEST(World, GroupsAreChecked) {
  const auto world = dry_world(2, 4);
  EXPECT_EQ(text_of<InternalError>([&] {
              world->group("tp", {0, 1});
            }),
            "[group] tp: rank 2 is no member and cannot make it");
  EXPECT_EQ(text_of<InternalError>([&] {
              world->group("tp", {2, 4});
            }),
            "[group] tp: rank 4 is outside the world of 4");
  EXPECT_EQ(text_of<InternalError>([&] { world->group("tp", {2, 2}); }), "[group] tp: rank 2 is listed twice");
  const Group tp = world->group("tp", {3, 2});
  EXPECT_EQ(tp.rank(), 1);
  EXPECT_EQ(&tp.channel(), &world->group("tp", {3, 2}).channel());
  EXPECT_NE(&tp.channel(), &world->group("tp", {2, 3}).channel());
  EXPECT_EQ(world->groups().size(), 3u);  // with the world
  EXPECT_THROW(dry_world(4, 4), InternalError);
}

TEST(World, KeysAreOddAndDiffer) {
  const auto world = dry_world(0, 4);
  std::set<std::uint64_t> keys;
  for (const char* name : {"tp", "dp", "pp"}) {
    for (const auto& ranks : std::vector<std::vector<int>>{{0, 1}, {1, 0}, {0, 1, 2}, {0, 2}}) {
      const std::uint64_t key = world->group(name, ranks).channel().key();
      EXPECT_EQ(key % 2, 1u);
      keys.insert(key);
    }
  }
  EXPECT_EQ(keys.size(), 12u);
}

/// A rank's calls as they are booked, without a transport.
struct Booked {
  explicit Booked(int rank) : world(dry_world(rank, 3)), group(world->group("tp", {0, 1, 2})) {}
  void collective(Index count, std::uint32_t site, Reduce reduce = Reduce::sum) {
    Call call;
    call.op = Op::all_reduce;
    call.dtype = DType::f32;
    call.reduce = reduce;
    call.count = count;
    call.site = site;
    group.channel().book(call, count * 4);
  }
  void message(Op op, int peer, int lane, Index count) {
    Call call;
    call.op = op;
    call.dtype = DType::f32;
    call.root = peer;
    call.lane = lane;
    call.count = count;
    group.channel().book(call, count * 4);
  }
  std::unique_ptr<World> world;
  Group group;
};

/// The sum of the terms of three ranks; `alter` is what rank `odd` does in place of the second of three calls.
template <class Alter>
std::uint64_t sum_of_terms(int odd, Alter&& alter) {
  std::uint64_t sum = 0;
  for (int rank = 0; rank < 3; ++rank) {
    Booked booked(rank);
    booked.collective(100, 1);
    if (rank == odd) {
      alter(booked);
    } else {
      booked.collective(100, 2);
      booked.collective(100, 3);
    }
    booked.message(Op::send, (rank + 1) % 3, 0, 10 + rank);
    booked.message(Op::send, (rank + 1) % 3, 1, 20 + rank);
    booked.message(Op::recv, (rank + 2) % 3, 1, 20 + (rank + 2) % 3);
    booked.message(Op::recv, (rank + 2) % 3, 0, 10 + (rank + 2) % 3);
    sum += booked.world->agreement_term();
  }
  return sum;
}

TEST(Agreement, SumIsZeroWhenAllAgree) {
  EXPECT_EQ(sum_of_terms(-1, [](Booked&) {}), 0u);
}

TEST(Agreement, EveryMutationOfEveryRankShows) {
  for (int odd = 0; odd < 3; ++odd) {
    EXPECT_NE(sum_of_terms(odd, [](Booked& b) { b.collective(100, 2); }), 0u) << "skipped";
    EXPECT_NE(sum_of_terms(odd,
                           [](Booked& b) {
                             for (const std::uint32_t site : {2, 2, 3}) b.collective(100, site);
                           }),
              0u)
        << "doubled";
    EXPECT_NE(sum_of_terms(odd,
                           [](Booked& b) {
                             for (const std::uint32_t site : {3, 2}) b.collective(100, site);
                           }),
              0u)
        << "swapped, of one size";
    EXPECT_NE(sum_of_terms(odd, [](Booked& b) { b.collective(99, 2), b.collective(100, 3); }), 0u) << "another count";
    EXPECT_NE(sum_of_terms(odd, [](Booked& b) { b.collective(100, 2, Reduce::max), b.collective(100, 3); }), 0u)
        << "max";
    EXPECT_NE(sum_of_terms(odd,
                           [](Booked& b) {
                             b.collective(100, 2), b.collective(100, 3);
                             b.message(Op::send, (b.group.rank() + 1) % 3, 0, 1);
                           }),
              0u)
        << "a send without a receive";
  }
}

TEST(Calls, AreDescribed) {
  Call call;
  call.op = Op::all_reduce;
  call.dtype = DType::f32;
  call.count = 128;
  call.sequence = 7;
  call.file = "nn/mlp.cpp";
  call.line = 42;
  EXPECT_EQ(describe(call), "all_reduce(sum, f32 x 128) #7 at mlp.cpp:42");
  call.op = Op::recv;
  call.root = 3;
  EXPECT_EQ(describe(call), "recv(f32 x 128 from member 3, lane 0) #7 at mlp.cpp:42");
}

TEST(Calls, LogKeepsTheLatest) {
  Booked booked(0);
  for (int i = 0; i < 5000; ++i) booked.collective(i, 1);
  const std::string log = booked.world->call_log();
  EXPECT_TRUE(log.starts_with("rank 0 of 3 (dry): the last 4096 of 5000 communication calls, the latest last\n"))
      << log;
  EXPECT_EQ(log.find("f32 x 903)"), std::string::npos);
  EXPECT_NE(log.find("NOT DONE  tp  all_reduce(sum, f32 x 904) #904"), std::string::npos);
  EXPECT_NE(log.find("#4999"), std::string::npos);
}

TEST(RankLists, StayShort) {
  RankList list;
  for (int rank = 0; rank < 100; ++rank) list.add(rank, rank == 0 ? "ended" : "");
  EXPECT_EQ(list.text(), "rank 0 (ended), rank 1, rank 2, rank 3, rank 4, rank 5, rank 6, rank 7 and 92 more");
}

}  // namespace
}  // namespace megalith::comm
