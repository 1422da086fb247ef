// Runs the transport cases outside gtest:
//   comm_check --threads N [WHAT]       on threads
//   comm_check nccl-threads N [WHAT...] on threads with a GPU each
//   comm_check nccl-bench N             the same, for nccl-bench alone
//   mpirun ... comm_check [WHAT]        on processes
//   mpirun ... comm_check nccl [WHAT...] on processes with a GPU each
// WHAT, without which it is all:
//   all, NAME          the cases of transport_cases.h, or one of them, or a misuse (which then ends in its error)
//   bench              latency and bandwidth of all_reduce between host memories
//   nccl-bench         how long collectives and messages between GPUs take
//   --list             the misuse cases: name, ranks, exit code, one a line
//   --expect NAME      what the error text of a misuse case must contain, one fragment a line
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/nccl_bench.h"
#include "tests/comm/transport_cases.h"

namespace megalith::comm {
namespace {

/// The median of the seconds that one all_reduce of `count` f32 takes.
double seconds_of(World& world, Index count, int rounds) {
  Exec ex;
  std::vector<float> data(static_cast<std::size_t>(count));
  const Tensor tensor(data.data(), {count}, DType::f32);
  std::vector<double> seconds;
  for (int i = 0; i < rounds + 3; ++i) {
    const double start = monotonic_s();
    all_reduce(ex, world.all(), tensor, Reduce::sum).wait(ex);
    if (i >= 3) seconds.push_back(monotonic_s() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + rounds / 2, seconds.end());
  return seconds[static_cast<std::size_t>(rounds / 2)];
}

void bench(World& world) {
  for (const Index count : {16, 256, 1024, 2048, 4096, 16384, 262144, 4194304}) {
    const double seconds = seconds_of(world, count, count > 100000 ? 20 : 2000);
    if (world.rank() != 0) continue;
    const auto bytes = static_cast<double>(count) * 4;
    std::printf("%s, %d ranks, all_reduce of %9.0f bytes: %9.2f us, %6.2f GB/s\n",
                std::string(world.transport()).c_str(), world.size(), bytes, seconds * 1e6, bytes / seconds * 1e-9);
  }
}

void run_named(World& world, const std::string& name) {
  if (name == "bench") return bench(world);
  if (name == "nccl-bench") return nccl_bench(world);
  for (const TransportCase& each : transport_cases()) {
    if (name != "all" && name != each.name) continue;
    const bool skipped = device_of(world) != Device::cpu && !each.cpu_only.empty();
    if (!skipped) each.run(world);
    if (world.rank() != 0) continue;
    const std::string remark = skipped ? str("skipped: ", each.name, ": ", each.cpu_only) : str("passed: ", each.name);
    std::printf("%s\n", remark.c_str());
  }
  for (const MisuseCase& each : misuse_cases()) {
    if (name == each.name) each.run(world);
  }
}

int report(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const ExitCode code = own == nullptr ? ExitCode::internal : own->code();
  std::fprintf(stderr, "megalith: %s %s\n", code_name(code).c_str(), error.what());
  return static_cast<int>(code);
}

bool is_misuse(const std::string& name) {
  return std::ranges::any_of(misuse_cases(), [&](const MisuseCase& each) { return name == each.name; });
}

/// Runs `body` as this process's rank under mpirun.
void run_process(const std::function<void(World&)>& body, const WorldOptions& options) {
  run_mpi_rank(
      body, [](const std::exception& error, int) { return report(error); }, options);
}

void run_on_gpus(const std::vector<std::string>& arguments) {
  widen_gpu_queues();
  const bool processes = arguments[0] == "nccl";
  std::vector<std::string> names(arguments.begin() + (processes ? 1 : 2), arguments.end());
  if (names.empty()) names.push_back(arguments[0] == "nccl-bench" ? arguments[0] : "all");
  const auto body = [&](World& world) {
    for (const std::string& name : names) run_named(world, name);
  };
  const WorldOptions options{.timeout_s = 60};
  if (!processes) return run_gpu_ranks(std::atoi(arguments[1].c_str()), body, options);
  run_process([&](World& host) { run_gpu_rank(host, body, options); }, options);
}

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "nccl" || (arguments.size() > 1 && arguments[0].starts_with("nccl-")))) {
    run_on_gpus(arguments);
    return 0;
  }
  if (arguments.size() == 1 && arguments[0] == "--list") {
    for (const MisuseCase& each : misuse_cases()) {
      std::printf("%s %d %d\n", std::string(each.name).c_str(), each.ranks, static_cast<int>(each.code));
    }
    return 0;
  }
  if (arguments.size() == 2 && arguments[0] == "--expect") {
    for (const MisuseCase& each : misuse_cases()) {
      if (each.name != arguments[1]) continue;
      for (const std::string_view fragment : each.fragments) std::printf("%s\n", std::string(fragment).c_str());
    }
    return 0;
  }
  const bool threads = arguments.size() >= 2 && arguments[0] == "--threads";
  const std::string name = arguments.size() % 2 == 1 ? arguments.back() : "all";
  const WorldOptions options{.timeout_s = is_misuse(name) ? kMisuseTimeout_s : 60};
  const auto body = [&](World& world) { run_named(world, name); };
  if (threads) {
    run_ranks(std::atoi(arguments[1].c_str()), body, options);
  } else {
    run_process(body, options);
  }
  return 0;
}

}  // namespace
}  // namespace megalith::comm

int main(int argc, char** argv) {
  try {
    return megalith::comm::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    return megalith::comm::report(error);
  }
}
