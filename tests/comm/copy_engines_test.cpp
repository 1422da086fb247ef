// Large messages and collectives between GPUs by their copy engines and by kernels with device barriers (comm/peer),
// also from a graph. Only in builds with NCCL.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/comm/peer/mailbox.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/gpu_pretence.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/peer_ranks.h"

namespace megalith::comm {
namespace {

/// A group of all ranks that a PeerGroup carries.
Group all_ranks(World& world, const std::string& name, Messages messages = Messages::none) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  Group group = world.group(name, std::move(ranks), {.messages = messages});
  if (group.channel().multiprocessors() == kCommunicationMultiprocessors)
    throw InternalError(name + ": NCCL carries it");
  return group;
}

/// Rank `rank`'s number at place i: sums of several are rounded, and depend on the order.
template <class T>
T number(int rank, Index i) {
  const std::uint64_t word = mix64(static_cast<std::uint64_t>(i) * 64 + static_cast<std::uint64_t>(rank));
  const double unit = static_cast<double>(word >> 11) * 0x1p-53;
  return converted<T>((unit - 0.5) * (word % 7 == 0 ? 1000.0 : 1.0));
}

/// The sum over all ranks at place i, in ascending order, rounded once.
template <class T>
T sum_of(int ranks, Index i) {
  using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
  auto sum = converted<Wide>(number<T>(0, i));
  for (int rank = 1; rank < ranks; ++rank) sum += converted<Wide>(number<T>(rank, i));
  return converted<T>(sum);
}

template <class T, class At>
Tensor put(Exec& ex, Index count, const At& at) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = at(i);
  const Tensor tensor = ex.tensor({count}, dtype_of<T>);
  ex.copy(tensor.raw(), values.data(), tensor.bytes());
  ex.synchronize();
  return tensor;
}

template <class T, class Want>
void expect_at(Exec& ex, const Tensor& tensor, const char* what, const Want& want) {
  std::vector<T> values(static_cast<std::size_t>(tensor.numel()));
  ex.synchronize();  // first: see run_peer_ranks
  ex.copy(values.data(), tensor.raw(), tensor.bytes());
  ex.synchronize();
  for (Index i = 0; i < tensor.numel(); ++i) {
    if (std::memcmp(&values[static_cast<std::size_t>(i)], &static_cast<const T&>(want(i)), sizeof(T)) == 0) continue;
    throw InternalError(str(what, ": element ", i, " of ", tensor.numel(), " is wrong"));
  }
}

/// All members' graphs are there, or done with: none may launch one before the others have made theirs.
void synchronize_members(Exec& ex, const Group& group) {
  barrier(ex, group);
  ex.synchronize();
}

/// Captured and ready to be launched in the stream of `ex`.
class CapturedCalls {
 public:
  template <class Calls>
  CapturedCalls(Exec& ex, Calls&& calls) : stream_(cuda::native(ex.stream())) {
    cudaGraph_t graph = nullptr;
    cuda::check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    calls();
    cuda::check(cudaStreamEndCapture(stream_, &graph));
    cuda::check(cudaGraphInstantiate(&ready_, graph, 0));
    cuda::check(cudaGraphDestroy(graph));
  }
  ~CapturedCalls() { static_cast<void>(cudaGraphExecDestroy(ready_)); }
  CapturedCalls(const CapturedCalls&) = delete;
  CapturedCalls& operator=(const CapturedCalls&) = delete;

  void launch() { cuda::check(cudaGraphLaunch(ready_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t ready_ = nullptr;
};

enum class Calls : std::uint8_t { eager, captured };

/// More than a piece, and no multiple of what a thread or a copy takes; captured, each call is a graph of its own,
/// launched once.
template <class T>
void sums_and_gathers(World& world, Calls calls, Priority priority) {
  Exec ex(Device::cuda);
  const Group group = all_ranks(world, "sums");
  const WatchedReplays replays(world, ex);
  const auto run = [&](const auto& call) {
    synchronize_members(ex, group);
    if (calls == Calls::eager) return call();
    CapturedCalls captured(ex, call);
    synchronize_members(ex, group);
    captured.launch();
    ex.synchronize();
    synchronize_members(ex, group);  // before the graph goes: a member's launch touches the others' tensors
  };
  const int n = world.size(), rank = world.rank();
  const Index pieces = MailboxLayout::kPieceBytes / Index{sizeof(T)}, part = pieces / n + 40;

  for (const Index count : {Index{1} << 20, pieces + 12345}) {
    const Tensor x = put<T>(ex, count, [&](Index i) { return number<T>(rank, i); });
    run([&] { all_reduce(ex, group, x, Reduce::sum, priority).wait(ex); });
    expect_at<T>(ex, x, "all_reduce", [&](Index i) { return sum_of<T>(n, i); });
  }
  const Tensor in = put<T>(ex, part * n, [&](Index i) { return number<T>(rank, i); });
  const Tensor own_part(in.data<T>() + rank * part, {part}, in.dtype());
  const Tensor out = ex.tensor({part}, in.dtype());
  run([&] { reduce_scatter(ex, group, in, out, Reduce::sum, priority).wait(ex); });
  const auto sum_of_part = [&](Index i) { return sum_of<T>(n, rank * part + i); };
  expect_at<T>(ex, out, "reduce_scatter", sum_of_part);
  run([&] { reduce_scatter(ex, group, in, own_part, Reduce::sum, priority).wait(ex); });
  expect_at<T>(ex, own_part, "reduce_scatter in place", sum_of_part);

  const auto of_all = [&](Index i) { return number<T>(static_cast<int>(i / part), i % part); };
  const Tensor own = put<T>(ex, part, [&](Index i) { return number<T>(rank, i); });
  const Tensor gathered = ex.tensor({part * n}, in.dtype());
  run([&] { all_gather(ex, group, own, gathered, priority).wait(ex); });
  expect_at<T>(ex, gathered, "all_gather", of_all);
  const Tensor place = put<T>(ex, part * n, [&](Index i) { return i / part == rank ? of_all(i) : T{}; });
  const Tensor own_place(place.data<T>() + rank * part, {part}, in.dtype());
  run([&] { all_gather(ex, group, own_place, place, priority).wait(ex); });
  expect_at<T>(ex, place, "all_gather in place", of_all);
}

/// Both ways round the ring, more pieces than there are slots, receives posted before and after sends.
void messages(World& world) {
  Exec ex(Device::cuda);
  const Group ring = all_ranks(world, "messages", Messages::neighbours);
  const int n = world.size(), rank = world.rank();
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  const auto byte = [](int from, int message) {
    return [=](Index i) { return number<std::int32_t>(from + 8 * message, i); };
  };
  const Index count = (MailboxLayout::kSlots + 1) * MailboxLayout::kSlotBytes / 4 + 777;
  std::vector<Tensor> forth, back, from_previous, from_next;
  for (int message = 0; message < 3; ++message) {
    forth.push_back(put<std::int32_t>(ex, count, byte(rank, message)));
    back.push_back(put<std::int32_t>(ex, count, byte(rank + 4, message)));
    from_previous.push_back(ex.tensor({count}, DType::i32));
    from_next.push_back(ex.tensor({count}, DType::i32));
  }
  synchronize_members(ex, ring);
  std::vector<Pending> pending;
  for (int message = 0; message < 3; ++message) {
    const auto at = static_cast<std::size_t>(message);
    pending.push_back(recv(ex, ring, from_previous[at], previous, 0));
    if (message == 1) pending.push_back(recv(ex, ring, from_next[at], next, 1));
    pending.push_back(send(ex, ring, forth[at], next, 0));
    pending.push_back(send(ex, ring, back[at], previous, 1));
    if (message != 1) pending.push_back(recv(ex, ring, from_next[at], next, 1));
  }
  for (Pending& each : pending) each.wait(ex);
  for (int message = 0; message < 3; ++message) {
    const auto at = static_cast<std::size_t>(message);
    expect_at<std::int32_t>(ex, from_previous[at], "from the previous", byte(previous, message));
    expect_at<std::int32_t>(ex, from_next[at], "from the next", byte(next + 4, message));
  }
}

/// A captured step: adds x up over all ranks and passes it on, into y of the next, and its beginning into three small
/// messages. Sends are waited for before anything is received: of the small messages two have room where they wait.
class Replayed {
 public:
  explicit Replayed(World& world)
      : world_(world),
        sums_(all_ranks(world, "sums")),
        ring_(all_ranks(world, "messages", Messages::neighbours)),
        x(put<float>(ex, kCount, [](Index i) { return static_cast<float>(i % 5); })),
        y(ex.tensor({kCount}, DType::f32)),
        small{ex.tensor({kSmall}, DType::f32), ex.tensor({kSmall}, DType::f32), ex.tensor({kSmall}, DType::f32)},
        replays_(world, ex) {
    synchronize_members(ex, sums_);
    step();  // outside of graphs first
    graph_.emplace(ex, [&] { step(); });
    synchronize_members(ex, sums_);
  }

  void step() {
    const int n = world_.size(), rank = world_.rank();
    const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
    std::vector<Pending> receives;
    for (const Tensor& tensor : small) receives.push_back(recv(ex, ring_, tensor, previous, 1));
    receives.push_back(recv(ex, ring_, y, previous));
    all_reduce(ex, sums_, x, Reduce::sum).wait(ex);
    send(ex, ring_, x, next).wait(ex);
    for (std::size_t i = 0; i < small.size(); ++i)
      send(ex, ring_, Tensor(x.raw(), {kSmall}, x.dtype()), next, 1).wait(ex);
    for (Pending& receive : receives) receive.wait(ex);
  }
  void launch() { graph_->launch(); }
  /// Its sum alone, outside of graphs.
  void sum() { all_reduce(ex, sums_, x, Reduce::sum, Priority::alone).wait(ex); }
  cudaStream_t stream() const { return cuda::native(ex.stream()); }

 private:
  static constexpr Index kCount = (MailboxLayout::kSlots + 1) * MailboxLayout::kSlotBytes / Index{sizeof(float)} + 777;
  static constexpr Index kSmall = MailboxLayout::kSlots * MailboxLayout::kSlotBytes / 2 / Index{sizeof(float)};

  World& world_;
  Group sums_, ring_;

 public:
  Exec ex{Device::cuda};
  Tensor x, y;
  std::array<Tensor, 3> small;

 private:
  std::optional<CapturedCalls> graph_;
  WatchedReplays replays_;
};

void replayed(World& world) {
  Replayed graph(world);
  for (int i = 0; i < 3; ++i) graph.launch();
  graph.step();  // and outside of graphs again
  graph.ex.synchronize();
  world.check_health();
  const float factor = std::pow(static_cast<float>(world.size()), 5.0f);
  for (const Tensor& tensor : {graph.x, graph.y, graph.small[0], graph.small[1], graph.small[2]})
    expect_at<float>(graph.ex, tensor, "after 5 steps", [&](Index i) { return factor * static_cast<float>(i % 5); });
}

/// Rank 0 waits for a rank that has failed, in a graph or in a kernel. Returns whether its stream was idle when it
/// heard of it.
bool idle_when_told(World& world, Calls calls) {
  Replayed graph(world);
  graph.launch();
  graph.ex.synchronize();
  if (world.rank() > 0) throw NonFiniteError("[loss] loss = nan: must be finite");
  for (int i = 0; i < 2; ++i) calls == Calls::captured ? graph.launch() : graph.sum();
  try {
    for (;;) {
      world.check_health();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const AbortedError&) {
    return cudaStreamQuery(graph.stream()) == cudaSuccess;
  }
}

class CopyEngines : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    MEGALITH_NEEDS_GPU_RANKS(GetParam());
    if (ranks_are_processes()) {
      if (!ranks_read_tensors()) GTEST_SKIP() << "these processes share no memory of their GPUs";
      return;
    }
    int reaches = 0;
    for (int other = 1; other < GetParam(); ++other) {
      cuda::check(cudaDeviceCanAccessPeer(&reaches, 0, other));
      if (reaches == 0) GTEST_SKIP() << "GPU 0 does not reach the memory of GPU " << other;
    }
  }
  void run(const std::function<void(World&)>& body) {
    EXPECT_NO_THROW(run_gpu_ranks(GetParam(), body, {.timeout_s = 30}));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CopyEngines, testing::Values(2, 3, 4), testing::PrintToStringParamName());

/// f32 in every way, the other dtypes by the kernels that know of them; run(body) runs it on all ranks.
void sum_in_every_way(const std::function<void(const std::function<void(World&)>&)>& run) {
  run([](World& world) {
    const auto gpus = static_cast<std::size_t>(std::min(world.size(), device::num_gpus()));
    if (!ranks_are_processes() && device::sharers().size() < gpus)
      throw InternalError("tensors are out of the other members' reach");
  });
  for (const Calls calls : {Calls::eager, Calls::captured}) {
    for (const Priority priority : {Priority::awaited, Priority::beside_work, Priority::alone})
      run([=](World& world) { sums_and_gathers<float>(world, calls, priority); });
  }
  for (const Priority priority :
       {Priority::beside_work, Priority::alone}) {  // by copy engines, and by kernels with device barriers
    run([=](World& world) { sums_and_gathers<double>(world, Calls::eager, priority); });
    run([=](World& world) { sums_and_gathers<bfloat16>(world, Calls::eager, priority); });
    run([=](World& world) { sums_and_gathers<float16>(world, Calls::eager, priority); });
  }
}

TEST_P(CopyEngines, SumInAscendingRankOrderAndRoundOnce) {
  sum_in_every_way([&](const auto& body) { run(body); });
}
TEST_P(CopyEngines, CarryMessages) { run(messages); }
TEST_P(CopyEngines, RepeatInAGraph) { run(replayed); }
TEST_P(CopyEngines, EndWhatWaitsForARankThatHasFailed) {
  if (ranks_are_processes()) GTEST_SKIP() << "processes cannot communicate after a failure";
  for (const Calls calls : {Calls::captured, Calls::eager}) {
    std::atomic<bool> was_idle{false};
    const double start_s = monotonic_s();
    const auto body = [&](World& world) { was_idle = idle_when_told(world, calls) || was_idle; };
    EXPECT_THROW(run_gpu_ranks(GetParam(), body), NonFiniteError);
    EXPECT_TRUE(was_idle);
    EXPECT_LT(monotonic_s() - start_s, 20);
  }
}

/// More ranks than GPUs: what three, four or eight members do is seen on a machine with one or two.
class RanksThatShareGpus : public testing::TestWithParam<int> {
 protected:
  /// Each GPU has at most so many ranks.
  void run(int most, const std::function<void(World&)>& body) {
    const int gpus = device::num_gpus();
    if (gpus == 0) GTEST_SKIP() << "needs a GPU";
    if (GetParam() > most * gpus)
      GTEST_SKIP() << GetParam() << " ranks need " << ceil_div(GetParam(), most) << " GPUs, this machine has " << gpus;
    EXPECT_NO_THROW(run_peer_ranks(GetParam(), body));
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RanksThatShareGpus, testing::Values(2, 3, 4, 8), testing::PrintToStringParamName());

TEST_P(RanksThatShareGpus, SumInAscendingRankOrderAndRoundOnce) {
  sum_in_every_way([&](const auto& body) { run(kMaxRanksAGpu, body); });
}
TEST_P(RanksThatShareGpus, SumWhereTensorsAreOutOfReach) {
  if (device::num_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  const auto body = [](World& world) { sums_and_gathers<float>(world, Calls::eager, Priority::awaited); };
  EXPECT_NO_THROW(run_peer_ranks(GetParam(), body, InReach::mailboxes));
}
// No machine at hand has GPUs that reach each other over PCIe.
TEST_P(RanksThatShareGpus, GoByFlushingCopiesOverPcieOrNotAtAll) {
  if (device::num_gpus() == 0) GTEST_SKIP() << "needs a GPU";
  const auto body = [](World& world) {
    sums_and_gathers<float>(world, Calls::eager, Priority::awaited);
    if (world.size() <= kMaxSendingRanksAGpu) messages(world);
  };
  device::pretend({.links_are_pcie = true});
  if (can_flush()) {
    EXPECT_NO_THROW(run_peer_ranks(GetParam(), body));
  } else {
    EXPECT_THROW(run_peer_ranks(GetParam(), body), Error) << "its waits cannot flush: NCCL carries all";
  }
  device::pretend({});
}
TEST_P(RanksThatShareGpus, CarryMessages) { run(kMaxSendingRanksAGpu, messages); }
TEST_P(RanksThatShareGpus, RepeatInAGraph) { run(kMaxSendingRanksAGpu, replayed); }

}  // namespace
}  // namespace megalith::comm
