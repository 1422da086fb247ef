// The transport cases between GPUs, the ranks being threads of this process, and how ranks that fail end.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/nccl/nccl_world.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/row_cases.h"
#include "tests/comm/transport_cases.h"

namespace megalith::comm {
namespace {

struct GpuEnvironment : testing::Environment {
  void SetUp() override { set_gpu_environment(); }
};
const auto* const gpu_environment = testing::AddGlobalTestEnvironment(new GpuEnvironment);

/// Why nothing can be tested on so many GPUs here; empty: it can.
std::string hindrance(int gpus) {
  if (!has_nccl()) return "built without NCCL";
  if (device::num_gpus() >= gpus) return "";
  return str("needs ", gpus, " GPUs, this machine has ", device::num_gpus());
}

class Nccl : public testing::TestWithParam<std::tuple<TransportCase, int>> {};

TEST_P(Nccl, Passes) {
  const auto& [each, ranks] = GetParam();
  if (!each.cpu_only.empty()) GTEST_SKIP() << each.cpu_only;
  if (const std::string why = hindrance(ranks); !why.empty()) GTEST_SKIP() << why;
  EXPECT_NO_THROW(run_gpu_ranks(ranks, each.run, {.timeout_s = 60}));
}

INSTANTIATE_TEST_SUITE_P(All, Nccl, testing::Combine(testing::ValuesIn(transport_cases()), testing::Values(1, 2, 4)),
                         [](const auto& each) {
                           return std::string(std::get<0>(each.param).name) + "On" +
                                  std::to_string(std::get<1>(each.param));
                         });

class NcclFailure : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = hindrance(2); !why.empty()) GTEST_SKIP() << why;
  }
  /// Runs `body` on two GPUs; returns the first error's text and checks its class and that it comes within 10 s of
  /// start(), which the body calls.
  template <class E>
  std::string text_of(const std::function<void(World&)>& body, const WorldOptions& options = {}) {
    std::string text = "nothing was thrown";
    try {
      run_gpu_ranks(2, body, options);
    } catch (const E& error) {
      text = error.what();
    } catch (const std::exception& error) {
      text = std::string("another class: ") + error.what();
    }
    EXPECT_LT(monotonic_s() - start_s_, 10);
    return text;
  }
  void start() { start_s_ = monotonic_s(); }

 private:
  std::atomic<double> start_s_ = 0;
};

void sum_over(World& world, const Group& group, int times) {
  Exec ex(Device::cuda);
  const Tensor x = ex.tensor({1 << 20}, DType::f32);
  for (int i = 0; i < times; ++i) all_reduce(ex, group, x, Reduce::sum).wait(ex);
  ex.synchronize();
  world.check_health();
}
/// Sums over all ranks and waits for the result on the host.
void sum(World& world) { sum_over(world, everyone(world), 1); }
/// Many times, by the copy engines, which carry no collectives in a group for messages.
void sum_by_copies(World& world) { sum_over(world, world.group("sums", {0, 1}), 50); }

/// Calls of a group without messages, whose kernels read rows in the other GPU's memory. What they read is nothing once
/// the other rank has failed.
template <class Check>
void read_rows(World& world, const Check& check) {
  Exec ex(Device::cuda);
  try {
    check(ex, world.group("rows", {0, 1}), RowSizes{.rows = 64, .width = 512, .out_rows = 96});
  } catch (...) {
    world.check_health();
    throw;
  }
}
void gather_rows_by_kernels(World& world) {
  read_rows(world, [](Exec& ex, const Group& group, const RowSizes& sizes) {
    check_gather_rows(ex, group, DType::f32, sizes, 2);
  });
}
void sum_rows_by_kernels(World& world) {
  read_rows(world, [](Exec& ex, const Group& group, const RowSizes& sizes) {
    check_gather_sum_rows(ex, group, DType::f32, sizes, 2, {});
  });
}

TEST_F(NcclFailure, OfARankFreesTheOthers) {
  for (const auto& waits :
       {sum, sum_by_copies, gather_small_rows, sum_small_rows, gather_rows_by_kernels, sum_rows_by_kernels}) {
    std::string freed;
    const std::string text = text_of<NonFiniteError>([&](World& world) {
      waits(world);
      if (world.rank() == 1) {
        start();
        throw NonFiniteError("[loss] loss = nan: must be finite");
      }
      try {
        waits(world);
      } catch (const AbortedError& error) {
        freed = error.what();
        throw;
      }
    });
    EXPECT_EQ(text, "rank 1: [loss] loss = nan: must be finite");
    EXPECT_EQ(freed, "[nccl] rank 1 failed first: rank 1: [loss] loss = nan: must be finite");
  }
}

/// The memory of the posted receive goes while the error unwinds, and cudaFree waits for all that the GPU still does.
TEST_F(NcclFailure, EndsAPostedReceiveOfItsOwn) {
  const std::string text = text_of<NonFiniteError>([&](World& world) {
    const Group all = everyone(world);
    Exec ex(Device::cuda);
    if (world.rank() == 0) return sum(world);
    const Pending receive = recv(ex, all, ex.tensor({1000}, DType::f32), 0),
                  large = recv(ex, all, ex.tensor({1 << 22}, DType::f32), 0);
    start();
    throw NonFiniteError("[loss] loss = inf: must be finite");
  });
  EXPECT_EQ(text, "rank 1: [loss] loss = inf: must be finite");
}

TEST_F(NcclFailure, AnAbsentRankIsAHang) {
  struct Case {
    void (*waits)(World&);
    const char *group, *call;
  };
  for (const auto& [waits, group, call] : {Case{sum, "world", "#1"}, Case{sum_by_copies, "sums", "#50"}}) {
    const std::string text = text_of<HangError>(
        [&](World& world) {
          waits(world);
          start();
          if (world.rank() == 0) return waits(world);
          std::this_thread::sleep_for(std::chrono::seconds(4));
        },
        {.timeout_s = 2});
    EXPECT_TRUE(text.starts_with(str("rank 0: [all_reduce] group ", group, " of 2 ranks: rank 0 waited 2."))) << text;
    EXPECT_NE(text.find(str("in all_reduce(sum, f32 x 1048576) ", call, " at nccl_test.cpp:")), std::string::npos)
        << text;
    EXPECT_TRUE(text.ends_with(" for rank 1")) << text;
  }
}

/// The host waits for the others' counts within the call.
TEST_F(NcclFailure, OfRowsIsAHangIfARankIsAbsent) {
  struct Case {
    void (*waits)(World&);
    const char *op, *call;
  };
  for (const auto& [waits, op, call] :
       {Case{gather_small_rows, "gather_rows", "gather_rows(f32 x 12 in rows of 3) #2"},
        Case{sum_small_rows, "gather_sum_rows", "gather_sum_rows(f32 x 12 in rows of 3) #2"}}) {
    const std::string text = text_of<HangError>(
        [&](World& world) {
          waits(world);
          start();
          if (world.rank() == 0) return waits(world);
          std::this_thread::sleep_for(std::chrono::seconds(4));
        },
        {.timeout_s = 2});
    EXPECT_TRUE(text.starts_with(str("rank 0: [", op, "] group world of 2 ranks: rank 0 waited 2."))) << text;
    EXPECT_NE(text.find(str("in ", call, " at row_cases.cpp:")), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with(" for rank 1")) << text;
  }
}

/// Lists that name what does not exist, on one rank: as on CPUs.
TEST_F(NcclFailure, OfRowsNamesWhatDoesNotExist) {
  int cases = 0;
  for (const MisuseCase& each : row_misuse_cases()) {
    if (each.name == "OtherWidth") continue;  // on GPUs calls are not compared
    ++cases;
    const std::string text = text_of<CollectiveError>([&](World& world) {
      start();
      each.run(world);
    });
    for (const std::string_view fragment : each.fragments)
      EXPECT_NE(text.find(fragment), std::string::npos) << each.name << ": " << text;
  }
  EXPECT_GE(cases, 9);
}

TEST_F(NcclFailure, MessagesNeedAGroupMadeForThem) {
  const std::string text = text_of<BackendError>([&](World& world) {
    start();
    Exec ex(Device::cuda);
    const Group silent = world.group("silent", {0, 1});
    (void)send(ex, silent, ex.tensor({4}, DType::f32), 1 - world.rank());
  });
  EXPECT_NE(text.find("[send] group silent of 2 ranks: member "), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("in groups made with Messages::neighbours")) << text;
}

TEST(GpusOfRanks, FindTheEnvironmentThatTheyNeed) {
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "NCCL_GRAPH_REGISTER"}) ::setenv(name, "1", 1);
  set_gpu_environment();
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
  EXPECT_STREQ(std::getenv("NCCL_GRAPH_REGISTER"), "0");
  const int before = hardware_queues;
  set_gpu_environment(16);
  EXPECT_STREQ(std::getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "16");
  EXPECT_EQ(hardware_queues, 16);
  set_gpu_environment(before);
}

TEST(GpusOfRanks, LoadKernelsAtTheStartIfAsked) {
  constexpr const char* kLoading = "CUDA_MODULE_LOADING";
  const char* const set = std::getenv(kLoading);
  const std::string before = set == nullptr ? "" : set;
  ::setenv(kLoading, "LAZY", 1);
  set_kernel_loading(KernelLoading::at_first_use);
  EXPECT_STREQ(std::getenv(kLoading), "LAZY");
  set_kernel_loading(KernelLoading::at_start);
  EXPECT_STREQ(std::getenv(kLoading), "EAGER");
  before.empty() ? ::unsetenv(kLoading) : ::setenv(kLoading, before.c_str(), 1);
}

TEST(GpusOfRanks, TellNcclWhatGraphsNeed) {
  constexpr const char* kMixing = "NCCL_GRAPH_MIXING_SUPPORT";
  const auto after = [](const char* before, CallsBehindGraphs calls) -> std::string {
    before == nullptr ? ::unsetenv(kMixing) : ::setenv(kMixing, before, 1);
    set_graph_environment(calls);
    const char* const set = std::getenv(kMixing);
    return set == nullptr ? "unset" : set;
  };
  EXPECT_EQ(after(nullptr, CallsBehindGraphs::never), nccl_version_number() < 22900 ? "0" : "unset");
  EXPECT_EQ(after("1", CallsBehindGraphs::never), "1") << "as somebody asks for";
  EXPECT_EQ(after(nullptr, CallsBehindGraphs::may_come), "unset");
  EXPECT_EQ(after("0", CallsBehindGraphs::may_come), "1");
  ::unsetenv(kMixing);
}

TEST(GpusOfRanks, ReachEachOtherUnlessNcclsVariablesSayNo) {
  const auto refusal = [](const char* disable, const char* level) {
    const auto set = [](const char* name, const char* value) {
      if (value == nullptr)
        ::unsetenv(name);
      else
        ::setenv(name, value, 1);
    };
    set("NCCL_P2P_DISABLE", disable);
    set("NCCL_P2P_LEVEL", level);
    std::string text = refusal_of_peers();
    ::unsetenv("NCCL_P2P_DISABLE");
    ::unsetenv("NCCL_P2P_LEVEL");
    return text;
  };
  EXPECT_EQ(refusal(nullptr, nullptr), "");
  EXPECT_EQ(refusal("0", "NVL"), "");
  EXPECT_EQ(refusal("", "SYS"), "");
  EXPECT_EQ(refusal("1", nullptr), "NCCL_P2P_DISABLE=1");
  EXPECT_EQ(refusal(nullptr, "LOC"), "NCCL_P2P_LEVEL=LOC");
  EXPECT_EQ(refusal("0", "0"), "NCCL_P2P_LEVEL=0");
}

TEST(GpusOfRanks, AreOnePerRank) {
  const int gpus = device::num_gpus();
  std::string text = "nothing was thrown";
  try {
    run_ranks(gpus + 1, [](World& world) { gpu_of_rank(world); });
  } catch (const ConfigError& error) {
    text = error.what();
  }
  EXPECT_TRUE(text.starts_with(str("parallel.ranks = ", gpus + 1, ": ", gpus + 1, " of them on host "))) << text;
  EXPECT_NE(text.find(str(", where they see ", gpus, gpus == 1 ? " GPU: " : " GPUs: ")), std::string::npos) << text;
  if (gpus > 0) run_ranks(gpus, [](World& world) { EXPECT_EQ(gpu_of_rank(world), world.rank()); });
}

/// A rank on `host` that sees these GPUs, in this order: one a letter.
RankGpus place(std::string_view host, std::string_view gpus) {
  RankGpus made;
  std::ranges::copy(host, made.host.begin());
  for (const char gpu : gpus) made.gpus[static_cast<std::size_t>(made.num_gpus++)].fill(static_cast<std::byte>(gpu));
  return made;
}

/// The GPUs that these ranks take, each by its number among those that the rank sees.
std::vector<int> chosen_by_all(const std::vector<RankGpus>& places) {
  std::vector<int> chosen;
  for (std::size_t rank = 0; rank < places.size(); ++rank) chosen.push_back(choose_gpu(places, static_cast<int>(rank)));
  return chosen;
}

/// Why they cannot have a GPU each: what every one of them is told.
std::string refusal_of(const std::vector<RankGpus>& places) {
  std::set<std::string> texts;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    try {
      choose_gpu(places, static_cast<int>(rank));
      ADD_FAILURE() << "rank " << rank << " of " << places.size() << " found a GPU";
    } catch (const ConfigError& error) {
      texts.insert(error.what());
    }
  }
  EXPECT_EQ(texts.size(), 1u);
  return texts.empty() ? "" : *texts.begin();
}

TEST(GpusOfRanks, AreCountedOnEachHost) {
  std::vector<RankGpus> places = {place("a", "xy"), place("b", "uvw"), place("b", "uvw"), place("a", "xy"),
                                  place("b", "uvw")};
  EXPECT_EQ(chosen_by_all(places), (std::vector<int>{0, 0, 1, 1, 2}));
  places.push_back(place("a", "xy"));
  EXPECT_EQ(refusal_of(places),
            "parallel.ranks = 6: 3 of them on host a, where they see 2 GPUs: one rank per GPU; start fewer ranks, use "
            "more hosts, show the ranks more GPUs (CUDA_VISIBLE_DEVICES), or set device.type = \"cpu\"");
}

TEST(GpusOfRanks, MayBeAllThatARankSees) {
  EXPECT_EQ(chosen_by_all({place("a", "x"), place("a", "y"), place("b", "z"), place("a", "w")}),
            (std::vector<int>{0, 0, 0, 0}));
  EXPECT_EQ(refusal_of({place("a", "x"), place("a", "x")}),
            "parallel.ranks = 2: 2 of them on host a, where they see 1 GPU: one rank per GPU; start fewer ranks, use "
            "more hosts, show the ranks more GPUs (CUDA_VISIBLE_DEVICES), or set device.type = \"cpu\"");
}

// As with NCCL_HOSTID, by which processes on one GPU pass for hosts.
TEST(GpusOfRanks, AreNotComparedBetweenHosts) {
  EXPECT_EQ(chosen_by_all({place("a", "x"), place("b", "x"), place("c", "xy")}), (std::vector<int>{0, 0, 0}));
}

TEST(GpusOfRanks, AreEachTakenOnceWhereViewsOverlap) {
  EXPECT_EQ(chosen_by_all({place("a", "xyz"), place("a", "yzx"), place("a", "zxy")}), (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(chosen_by_all({place("a", "xy"), place("a", "yx"), place("a", "yxz")}), (std::vector<int>{0, 0, 2}));
  // The first gives way to the second, and both to the third.
  EXPECT_EQ(chosen_by_all({place("a", "xy"), place("a", "x")}), (std::vector<int>{1, 0}));
  EXPECT_EQ(chosen_by_all({place("a", "xz"), place("a", "yx"), place("a", "y")}), (std::vector<int>{1, 1, 0}));
}

TEST(GpusOfRanks, AreRefusedToARankThatSeesOnlyThoseOfOthers) {
  EXPECT_EQ(refusal_of({place("b", "w"), place("a", "x"), place("a", "x"), place("a", "yz")}),
            "parallel.ranks = 4: rank 2 on host a sees only GPUs that other ranks use: one rank per GPU; show every "
            "rank all GPUs of its host, or one of its own (CUDA_VISIBLE_DEVICES, srun --gpus-per-task=1)");
}

TEST(GpusOfRanks, HaveAnIdentityEach) {
  const std::vector<device::GpuId> ids = device::gpu_ids();
  EXPECT_EQ(static_cast<int>(ids.size()), device::num_gpus());
  EXPECT_EQ(std::set<device::GpuId>(ids.begin(), ids.end()).size(), ids.size());
}

TEST(NcclWorld, SaysWhatIsMissing) {
  if (has_nccl() && device::num_gpus() > 0) GTEST_SKIP() << "nothing is missing here";
  const auto host = dry_world(0, 1);
  EXPECT_THROW(nccl_world(*host), BackendError);
  EXPECT_THROW(require_gpu_backend(2), BackendError);
}

}  // namespace
}  // namespace megalith::comm
