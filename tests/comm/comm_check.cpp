// Runs the transport cases outside gtest:
//   comm_check --threads N [WHAT]       on threads
//   comm_check nccl-threads N [WHAT...] on threads with a GPU each
//   mpirun ... comm_check [WHAT]        on processes, which share memory
//   mpirun ... comm_check apart [WHAT]  on processes that share none, as on several hosts
//   mpirun ... comm_check nccl [WHAT...] on processes with a GPU each
// WHAT, without which it is all:
//   FailureHeard       processes only, two: rank 1 fails, and rank 0 prints what World::failure() returns
//   all, NAME          the cases of transport_cases.h, or one of them, or a misuse (which then ends in its error)
//   --list             the misuse cases: name, ranks, exit code, one a line
//   --expect NAME      what the error text of a misuse case must contain, one fragment a line
//   --mutations        the cases of mutation_cases.h for processes, one name a line; each is a WHAT, too
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/comm/gpu_ranks.h"
#include "tests/comm/mutation_cases.h"
#include "tests/comm/published_memory.h"
#include "tests/comm/transport_cases.h"

namespace megalith::comm {
namespace {

void run_named(World& world, const std::string& name) {
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
  for (const MutationCase& each : mutation_cases()) {
    if (name == each.name()) MutatedRank(each, world.rank()).run(world);
  }
}

int report(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  const ExitCode code = own == nullptr ? ExitCode::internal : own->code();
  std::fprintf(stderr, "megalith: %s %s\n", code_name(code).c_str(), error.what());
  return static_cast<int>(code);
}

double timeout_of(const std::string& name) {
  if (std::ranges::any_of(misuse_cases(), [&](const MisuseCase& each) { return name == each.name; }))
    return kMisuseTimeout_s;
  const bool is_mutation =
      std::ranges::any_of(mutation_cases(), [&](const MutationCase& each) { return name == each.name(); });
  return is_mutation ? kMutationTimeout_s : 60;
}

constexpr const char* kFailureHeard = "FailureHeard";

/// Rank 1 fails while rank 0 waits without communication, as for a GPU. If the processes share memory, another thread
/// of rank 0 hears of it there; else once its own thread has received the message.
void hear_of_failure(World& world, bool apart) {
  const auto moment = std::chrono::milliseconds(5);
  Exec ex;
  std::byte begun{};
  const Tensor message(&begun, {1}, DType::u8);
  if (world.rank() == 1) {
    recv(ex, world.all(), message, 0).wait(ex);  // from here on rank 0 waits for nothing before its body
    world.abort("[loss] loss = nan");
    std::this_thread::sleep_for(1000 * moment);  // the job ends when this throws
    throw NonFiniteError("[loss] loss = nan");
  }
  std::string heard;
  try {
    send(ex, world.all(), message, 1).wait(ex);
    if (apart) barrier(ex, world.all());
  } catch (const AbortedError&) {  // in its own calls it hears of it anyway
  }
  std::thread([&] {
    for (; heard.empty(); heard = world.failure()) std::this_thread::sleep_for(moment);
  }).join();
  std::printf("heard: %s\n", heard.c_str());
  std::fflush(stdout);
}

/// Runs `body` as this process's rank under mpirun.
void run_process(const std::function<void(World&)>& body, const WorldOptions& options) {
  run_mpi_rank(
      body, [](const std::exception& error, int) { return report(error); }, [&] { return options; });
}

void run_on_gpus(const std::vector<std::string>& arguments) {
  set_gpu_environment();
  const bool processes = arguments[0] == "nccl";
  std::vector<std::string> names(arguments.begin() + (processes ? 1 : 2), arguments.end());
  if (names.empty()) names.emplace_back("all");
  const auto body = [&](World& world) {
    for (const std::string& name : names) run_named(world, name);
  };
  const WorldOptions options{.timeout_s = 60};
  if (!processes) return run_gpu_ranks(std::atoi(arguments[1].c_str()), body, options);
  run_process(
      [&](World& host) {
        host.share_memory();
        run_gpu_rank(host, body, options);
      },
      options);
}

int run(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "nccl" || (arguments.size() > 1 && arguments[0] == "nccl-threads"))) {
    run_on_gpus(arguments);
    return 0;
  }
  if (arguments.size() == 1 && arguments[0] == "--list") {
    for (const MisuseCase& each : misuse_cases()) {
      std::printf("%s %d %d\n", std::string(each.name).c_str(), each.ranks, static_cast<int>(each.code));
    }
    return 0;
  }
  if (arguments.size() == 1 && arguments[0] == "--mutations") {
    for (const MutationCase& each : mutation_cases()) {
      if (!each.of_threads) std::printf("%s\n", each.name().c_str());
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
  const bool apart = !arguments.empty() && arguments[0] == "apart";
  const std::size_t before_name = threads ? 2 : apart ? 1 : 0;
  const std::string name = arguments.size() > before_name ? arguments.back() : "all";
  const WorldOptions options{.timeout_s = timeout_of(name)};
  const auto body = [&](World& world) { run_named(world, name); };
  if (threads) {
    run_ranks(std::atoi(arguments[1].c_str()), body, options);
  } else {
    const auto sharing = [&](World& world) {
      if (!apart) world.share_memory();
      if (name == kFailureHeard) return hear_of_failure(world, apart);
      body(world);
      if (apart || (name != "all" && name != "PublishedMemory")) return;
      write_into_published_memory(world);
      if (world.rank() == 0) std::printf("passed: PublishedMemory\n");
    };
    run_process(sharing, options);
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
