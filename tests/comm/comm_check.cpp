// Runs the transport cases outside gtest: comm_check [--threads N] [all | NAME | bench], under mpirun without
// --threads.
//   all, NAME          the cases of transport_cases.h, or one of them, or a misuse (which then ends in its error)
//   bench              latency and bandwidth of all_reduce
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
#include "megalith/comm/threads/thread_world.h"

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
  for (const TransportCase& each : transport_cases()) {
    if (name != "all" && name != each.name) continue;
    each.run(world);
    if (world.rank() == 0) std::printf("passed: %s\n", std::string(each.name).c_str());
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

int run(const std::vector<std::string>& arguments) {
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
    run_mpi_rank(
        body, [](const std::exception& error, int) { return report(error); }, options);
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
