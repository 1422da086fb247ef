#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/comm/alone/alone_world.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/train/agreement.h"

namespace megalith::apps {

/// How many processes a launcher (mpirun, srun) started us as, and which of them this is; 0 without one.
struct Launcher {
  int processes = 0;
  int process = 0;
  bool is_beside_the_first = true;  ///< started by the command line of process 0, not by one after a `:` of mpirun
  bool is_on_one_host = false;      ///< all processes are on this host, as far as the launcher states it
};
Launcher detect_launcher();

/// Sets what CUDA must know of a job that trains before its first use, which is in config::resolve(). Pipelines of GPUs
/// load all kernels at the start (comm::KernelLoading) if there are experts, whose GEMMs change their sizes from step
/// to step. All other kernels run before the first step (model/stage_warm_up.cpp). Inference needs nothing: no rank
/// posts a receive whose message depends on its own later work.
void prepare_gpus_for_training(const config::RunConfig& asked);

/// One rank of a job of which no other rank runs (comm/alone).
struct AloneRank {
  int rank = 0;
  comm::AloneLinks links{};
};

/// How many ranks a job has, and where they compute.
struct JobShape {
  int ranks = 1;
  Device device = Device::cpu;
  comm::Transport transfers = comm::Transport::copy_engines;  ///< kernels: GPUs do not share memory
  bool share_gpu_memory = true;                               ///< of processes, with copy_engines
  comm::CallsBehindGraphs behind_graphs = comm::CallsBehindGraphs::may_come;
  comm::WorldOptions options{};
  train::Facts facts{};  ///< settings that must be equal in all processes
  train::Start start = train::Start::fresh;
  int threads = 0;                      ///< threads of a rank on the cores of the host; 0: the number of its World
  std::optional<AloneRank> alone = {};  ///< the only one that runs, without a launcher
};
/// The shape of a job that trains by this plan.
JobShape shape_of(const config::RunPlan& plan);

/// Throws ConfigError unless the launcher, if there is one, started one process per rank of the job. `what` names the
/// setting of their number ("--ranks"); `fix` may state how to change it.
void require_processes(const Launcher& launcher, std::string_view what, Index ranks, std::string_view fix = "");

/// The steps of a job, in this order. All but the body are called once in every process.
struct JobSteps {
  std::function<JobShape()> shape;                                      ///< its ranks and devices; changes nothing
  std::function<void()> read = [] {};                                   ///< reads its input
  std::function<train::Facts()> found = [] { return train::Facts(); };  ///< facts that must be equal in all processes
  std::function<void()> claim = [] {};     ///< creates and locks the output; in the first process only
  std::function<void(comm::World&)> body;  ///< on every rank
};

/// Runs a job. Under a launcher it runs on this process's MPI rank, else on threads of this process. On GPUs each rank
/// has its own GPU, over NCCL. Throws the error of the first failing rank.
/// Under MPI the failure of any step is reported here, once, and ends the job with the error's exit code. The same
/// happens for rank threads if another thread does not end. Processes whose settings, facts or builds differ are
/// refused (train::require_same) before they claim anything. A missing device is a BackendError. More ranks than GPUs
/// on a host is a ConfigError.
void run_job(const Launcher& launcher, const JobSteps& steps);

/// Prints a warning on standard error if MEGALITH_FAULT requests faults.
void warn_of_faults(const Launcher& launcher);
/// The file system of one rank, with the faults of MEGALITH_FAULT. Reads that fail for a passing reason are tried
/// again for a second (io::retrying_fs).
std::shared_ptr<io::Fs> rank_fs(int rank);

/// The folder for files that can be made again: $XDG_CACHE_HOME/megalith, else ~/.cache/megalith. Empty if the
/// environment has neither.
io::Path cache_folder();

/// Prints an error in the form of all commands. Returns its exit code. `rank` < 0: not a rank of a job.
int report_error(const std::exception& error, int rank = -1);

}  // namespace megalith::apps
