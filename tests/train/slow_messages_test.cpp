// Input gradients that reach the stage before late: their senders go on meanwhile, and must keep them until they have
// been taken (M7, T16).
#include <chrono>
#include <deque>
#include <thread>

#include "tests/train/graph_run.h"

namespace megalith {
namespace {

using testing::Grid;

/// Forwards to a channel of a transport, but takes gradients no earlier than they are waited for, and then some time
/// later: until then they lie where the sender has them.
class LateChannel final : public comm::Channel {
 public:
  explicit LateChannel(const comm::Group& group)
      : Channel(std::string(group.name()), {group.world_ranks().begin(), group.world_ranks().end()}, group.rank()),
        group_(group) {}

  comm::Ticket all_reduce(const comm::Call& call, void* data, Stream stream) override {
    return inner().all_reduce(call, data, stream);
  }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return inner().reduce_scatter(call, in, out, stream);
  }
  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return inner().all_gather(call, in, out, stream);
  }
  comm::Ticket all_to_all(const comm::Call& call, const comm::Parts<const void>& in, const comm::Parts<void>& out,
                          Stream stream) override {
    return inner().all_to_all(call, in, out, stream);
  }
  comm::Ticket broadcast(const comm::Call& call, void* data, Stream stream) override {
    return inner().broadcast(call, data, stream);
  }
  void barrier(const comm::Call& call, Stream stream) override { inner().barrier(call, stream); }
  comm::Ticket post_send(const comm::Call& call, const void* data, Stream stream) override {
    return inner().post_send(call, data, stream);
  }
  comm::Ticket post_recv(const comm::Call& call, void* data, Stream stream) override {
    if (call.lane != static_cast<int>(pipeline::Flow::gradient)) return inner().post_recv(call, data, stream);
    late_.push_back({call, data});
    return {kLate + posted_++, call.entry};
  }
  void wait(comm::Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    EXPECT_EQ(ticket.id - kLate, posted_ - static_cast<std::int64_t>(late_.size())) << "gradients are awaited in order";
    const Late message = late_.front();
    late_.pop_front();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    inner().wait(inner().post_recv(message.call, message.data, stream), stream);
  }
  void cancel(comm::Ticket ticket) noexcept override {
    if (ticket.id < kLate) inner().cancel(ticket);
  }

 private:
  static constexpr std::int64_t kLate = std::int64_t{1} << 62;
  struct Late {
    comm::Call call;
    void* data;
  };
  comm::Channel& inner() const { return group_.channel(); }

  comm::Group group_;
  std::deque<Late> late_;
  std::int64_t posted_ = 0;
};

class LateWorld final : public comm::World {
 public:
  explicit LateWorld(comm::World& world) : world_(world) { adopt_world(world.all()); }
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::string_view transport() const override { return world_.transport(); }
  void abort(const std::string& reason) override { world_.abort(reason); }

 protected:
  std::shared_ptr<comm::Channel> open(std::string name, std::vector<int> ranks, int,
                                      const comm::GroupUse& use) override {
    return std::make_shared<LateChannel>(world_.group(std::move(name), std::move(ranks), use));
  }

 private:
  comm::World& world_;
};

class LateGradients : public ::testing::TestWithParam<Grid> {};

TEST_P(LateGradients, ChangeNoBits) {
  using capture::GraphMode;
  config::RunPlan plan = testing::small_plan(GetParam(), "fp32", 8);
  const auto want = testing::run_of(plan, [](train::Engine&, Index) {});
  plan.graphs.warmup_steps = 2;
  for (const GraphMode mode : {GraphMode::none, GraphMode::layers, GraphMode::iteration}) {
    for (const capture::GraphsPer per : {capture::GraphsPer::microbatch, capture::GraphsPer::slot}) {
      if (mode != GraphMode::layers && per == capture::GraphsPer::slot) continue;
      SCOPED_TRACE(std::string(name(mode)) + " " + std::string(name(per)));
      plan.graphs.mode = mode;
      plan.graphs.per = per;
      testing::GraphRun late;
      comm::run_ranks(plan.grid.world_size,
                      [&](comm::World& world) {
                        LateWorld slow(world);
                        testing::train_rank(slow, plan, late, [](train::Engine&, Index) {});
                      },
                      {.timeout_s = 60});
      testing::expect_same(late, *want);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, LateGradients,
                         ::testing::Values(Grid{.pp = 2}, Grid{.pp = 4}, Grid{.pp = 2, .chunks = 2},
                                           Grid{.tp = 2, .pp = 2}),
                         [](const auto& test) { return test.param.name(); });

}  // namespace
}  // namespace megalith
