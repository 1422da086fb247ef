#include "apps/program/launch.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <span>
#include <system_error>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/comm/hang_verdict.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/nccl/nccl_world.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/config/preset_rules.h"
#include "megalith/io/fault_fs.h"
#include "megalith/io/reader.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/train/engine.h"

#include "apps/program/signals.h"
#include "apps/program/version.h"

namespace megalith::apps {
namespace {

/// The number in an environment variable of a launcher; nothing if it is not set.
std::optional<int> environment_number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  int number = 0;
  const char* end = text + std::strlen(text);
  if (std::from_chars(text, end, number).ptr != end || number < 0) {
    throw ConfigError(str("environment variable ", name, " = \"", text, "\": must be a number"));
  }
  return number;
}

/// Whether Open MPI started `process` by the command line of process 0: the list of counts begins with its own.
bool is_beside_the_first(int process) {
  const char* const counts = std::getenv("OMPI_APP_CTX_NUM_PROCS");
  int of_first = 0;
  if (counts == nullptr || std::from_chars(counts, counts + std::strlen(counts), of_first).ec != std::errc())
    return true;
  return process < of_first;
}

/// Whether a launcher's variables state that all processes are on this host: how many are, or on how many nodes.
bool is_on_one_host(int processes) {
  for (const char* const here : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (const std::optional<int> number = environment_number(here)) return *number == processes;
  }
  return environment_number("SLURM_STEP_NUM_NODES") == 1;
}

}  // namespace

Launcher detect_launcher() {
  // Open MPI's mpirun; MPICH, Intel MPI and srun through PMI; srun through PMIx, which names the rank only.
  constexpr std::array<std::array<const char*, 2>, 3> kVariables = {{{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                                                     {"PMI_SIZE", "PMI_RANK"},
                                                                     {"SLURM_STEP_NUM_TASKS", "PMIX_RANK"}}};
  for (const auto& [size, rank] : kVariables) {
    const std::optional<int> processes = environment_number(size), process = environment_number(rank);
    if (processes && process) return {*processes, *process, is_beside_the_first(*process), is_on_one_host(*processes)};
  }
  return {};
}

namespace {

bool has_experts(config::RunConfig asked) {
  config::RunPlan unused;
  Problems problems;  // config::resolve() reports them
  config::derive_preset(asked, unused, problems);
  return asked.moe.num_experts.value_or(0) > 0;
}

}  // namespace

void prepare_gpus_for_training(const config::RunConfig& asked) {
  using enum comm::KernelLoading;
  const bool is_gpu_pipeline = asked.device.type.value_or("cpu") == "cuda" && asked.parallel.pp.value_or(1) > 1;
  comm::set_kernel_loading(is_gpu_pipeline && has_experts(asked) ? at_start : at_first_use);
}

JobShape shape_of(const config::RunPlan& plan) {
  return {.ranks = plan.grid.world_size,
          .device = plan.device,
          .transfers = plan.transfers,
          .share_gpu_memory = plan.share_gpu_memory,
          .behind_graphs = train::calls_behind_graphs(plan),
          .options = {plan.timeout_s},
          .facts = train::facts_of(plan),
          .threads = plan.threads};
}

void require_processes(const Launcher& launcher, std::string_view what, Index ranks, std::string_view fix) {
  if (launcher.processes == 0 || launcher.processes == ranks) return;
  throw ConfigError(
      str(what, " = ", ranks, ": the launcher started ", launcher.processes, " processes; both must agree", fix));
}

namespace {

/// Returns f(). When it throws, a launcher may end this process before another one has reported.
template <class F>
auto noting_failure(F&& f) {
  try {
    return f();
  } catch (...) {
    set_unsaved(Unsaved::of_a_failed_job);
    throw;
  }
}

std::vector<io::Fault> faults_of_environment() {
  const char* const faults = std::getenv("MEGALITH_FAULT");
  return faults == nullptr ? std::vector<io::Fault>() : io::parse_faults(faults);
}

/// Applies the requested faults before every call.
class FaultHook final : public comm::CallHook {
 public:
  explicit FaultHook(io::CallFaults faults) : faults_(std::move(faults)) {}
  void apply(const comm::Call& call, const std::function<void(const comm::Call&)>& make) override {
    faults_.pass();
    make(call);
  }

 private:
  io::CallFaults faults_;
};

void run_with_faults(comm::World& world, const std::function<void(comm::World&)>& body) {
  if (io::CallFaults faults(faults_of_environment(), world.rank()); faults.any())
    world.set_hook(std::make_unique<FaultHook>(std::move(faults)));
  body(world);
}

/// Runs `body` in the world of the computation: that of the host on CPUs, one between the GPUs of the ranks on GPUs.
/// `gpus`: those of all ranks of the process, if they may access the memory of each other.
void run_on_device(const JobShape& job, int gpu, std::span<const int> gpus, comm::World& host,
                   const std::function<void(comm::World&)>& body) {
  const TeamSize team(job.threads > 0 ? job.threads : team_size());
  if (job.device == Device::cpu) return run_with_faults(host, body);
  device::use(job.device, gpu, gpus);
  if (host.size() == 1) return run_with_faults(host, body);
  const std::unique_ptr<comm::World> world =
      comm::nccl_world(host, job.options, job.share_gpu_memory ? job.transfers : comm::Transport::kernels);
  run_with_faults(*world, body);
}

/// One rank of a job, in a world without the others.
void run_alone(const JobShape& job, const std::function<void(comm::World&)>& body) {
  const TeamSize team(job.threads > 0 ? job.threads : team_size());
  device::use(job.device, 0);
  const std::unique_ptr<comm::World> world =
      comm::alone_world(job.alone->rank, job.ranks, job.device, job.alone->links);
  run_with_faults(*world, body);
}

}  // namespace

void run_job(const Launcher& launcher, const JobSteps& steps) {
  const auto report = [](const std::exception& error, int rank) { return report_error(error, rank); };
  JobShape job;
  if (launcher.processes > 0) {
    const auto options = [&] {
      job = noting_failure(steps.shape);
      job.facts.insert(job.facts.begin(), {{"build", version()}, {"device.type", std::string(name_of(job.device))}});
      comm::set_graph_environment(job.behind_graphs);
      return job.options;
    };
    const auto all = [&](comm::World& world) {
      train::require_same(world, job.facts, job.start);
      world.share_memory();
      set_failure_probe([positions = world.positions()] { return positions->is_failure_reported(); });
      int gpu = 0;
      if (job.device == Device::cuda) {
        comm::require_gpu_backend(world.size());
        gpu = comm::gpu_of_rank(world);
      }
      steps.read();
      train::require_same(world, steps.found(), job.start);
      if (launcher.process == 0) steps.claim();
      run_on_device(job, gpu, {}, world, steps.body);
    };
    comm::run_mpi_rank([&](comm::World& world) { noting_failure([&] { all(world); }); }, report, options);
  } else {
    job = steps.shape();
    comm::set_graph_environment(job.behind_graphs);
    if (job.device == Device::cuda) comm::require_gpus(job.alone ? 1 : job.ranks);
    steps.read();
    steps.claim();
    if (job.alone)
      return comm::run_ranks(
          1, [&](comm::World&) { run_alone(job, steps.body); }, job.options, report);
    const bool reach = job.transfers == comm::Transport::copy_engines && comm::refusal_of_peers().empty();
    std::vector<int> gpus(reach ? static_cast<std::size_t>(job.ranks) : 0);
    std::iota(gpus.begin(), gpus.end(), 0);
    comm::run_ranks(
        job.ranks, [&](comm::World& world) { run_on_device(job, world.rank(), gpus, world, steps.body); }, job.options,
        report);
  }
}

void warn_of_faults(const Launcher& launcher) {
  const char* const faults = std::getenv("MEGALITH_FAULT");
  if (faults == nullptr || *faults == '\0' || launcher.process > 0) return;
  log::warning(str("MEGALITH_FAULT = ", io::printable(faults),
                   ": file operations or communication calls are made to fail, for tests; unset it to train"));
}

std::shared_ptr<io::Fs> rank_fs(int rank) {
  std::shared_ptr<io::Fs> fs = io::posix_fs();
  if (const std::vector<io::Fault> faults = faults_of_environment(); !faults.empty())
    fs = std::make_shared<io::FaultFs>(std::move(fs), faults, rank);
  return io::retrying_fs(std::move(fs));
}

io::Path cache_folder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && io::Path(cache).is_absolute()) return io::Path(cache) / "megalith";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && io::Path(home).is_absolute()) return io::Path(home) / ".cache" / "megalith";
  return {};
}

int report_error(const std::exception& error, int rank) {
  const auto* ours = dynamic_cast<const Error*>(&error);
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const char* const lack = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? kNoMemory
                           : system != nullptr && is_lack_of_threads(*system)     ? kNoThread
                                                                                  : nullptr;
  const ExitCode code = ours != nullptr ? ours->code() : lack != nullptr ? ExitCode::io : ExitCode::internal;
  if (code == ExitCode::requeue && rank > 0) return static_cast<int>(code);  // every process reaches it
  const std::string text = lack != nullptr ? lack : error.what();
  const bool is_named = rank < 0 || is_verdict_of_all(code) || text.starts_with("rank ");
  const std::string name =
      code == ExitCode::usage ? "" : code_name(code) + ' ';  // errors of the command line and recipe have no name
  std::string lines = str("error: ", name, is_named ? "" : str("rank ", rank, ": "), text, '\n');
  if (const auto* hang = dynamic_cast<const comm::HangVerdict*>(&error); hang != nullptr)
    lines += str("megalith: ", name, "verdict: ", hang->verdict(), '\n');
  std::fputs(lines.c_str(), stderr);
  return static_cast<int>(code);
}

}  // namespace megalith::apps
