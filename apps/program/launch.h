#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

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
};
Launcher detect_launcher();

/// How many ranks a job has, and where they compute.
struct JobShape {
  int ranks = 1;
  Device device = Device::cpu;
  comm::Transport transfers = comm::Transport::copy_engines;  ///< kernels: GPUs do not share memory
  comm::CallsBehindGraphs behind_graphs = comm::CallsBehindGraphs::may_come;
  comm::WorldOptions options{};
  train::Facts facts{};  ///< what all processes must have been told alike
  train::Start start = train::Start::fresh;
  int threads = 0;  ///< of a rank on the host's cores; 0: as many as its World says
};
/// Of a job that trains by this plan.
JobShape shape_of(const config::RunPlan& plan);

/// Throws ConfigError unless the launcher, where there is one, started a process for each of the job's ranks. `what`
/// names their number ("--ranks"), `fix` may say how to change it.
void require_processes(const Launcher& launcher, std::string_view what, Index ranks, std::string_view fix = "");

/// What a command does of a job, in this order. All but the body are called once in every process.
struct JobSteps {
  std::function<JobShape()> shape;                                      ///< what it needs; makes nothing
  std::function<void()> read = [] {};                                   ///< what it works on
  std::function<train::Facts()> found = [] { return train::Facts(); };  ///< what all must have read alike
  std::function<void()> claim = [] {};     ///< makes and locks what the job writes to: the first process
  std::function<void(comm::World&)> body;  ///< on every rank
};

/// Runs a job: on this process's MPI rank under a launcher, else on threads of this process; on GPUs with a GPU of its
/// own, over NCCL. Throws what the first failing rank threw; under MPI a failure, of any step, is reported here, once,
/// and ends the job with the error's exit code; so does one of rank threads where another thread does not end.
/// Processes that differ in what they were told or find, or in the build, are refused (train::require_same) before they
/// claim anything. A device that is missing is a BackendError, more ranks of a host than GPUs a ConfigError.
void run_job(const Launcher& launcher, const JobSteps& steps);

/// Says on standard error that MEGALITH_FAULT asks for faults, where it does.
void warn_of_faults(const Launcher& launcher);
/// The file system of one rank, with the faults that MEGALITH_FAULT asks for. Reads that fail are tried again for a
/// second where the reason may pass (io::retrying_fs).
std::shared_ptr<io::Fs> rank_fs(int rank);

/// Where this user's programs keep what they can make again: $XDG_CACHE_HOME/megalith, else ~/.cache/megalith. Empty
/// where the environment names neither.
io::Path cache_folder();

/// Prints an error as every command does and returns its exit code. `rank` < 0: not a rank of a job.
int report_error(const std::exception& error, int rank = -1);

}  // namespace megalith::apps
