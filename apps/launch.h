#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// How many processes a launcher (mpirun, srun) started us as, and which of them this is; 0 without one.
struct Launcher {
  int processes = 0;
  int process = 0;
};
Launcher detect_launcher();

/// How many ranks a job has, and where they compute.
struct JobShape {
  int ranks = 1;
  Device device = Device::cpu;
  comm::Carrier transfers = comm::Carrier::copy_engines;  ///< kernels: GPUs do not share memory
  comm::CallsBehindGraphs behind_graphs = comm::CallsBehindGraphs::may_come;
  comm::WorldOptions options{};
};
/// Of a job that trains by this plan.
JobShape shape_of(const config::RunPlan& plan);

/// Throws ConfigError unless the launcher, where there is one, started a process for each of the job's ranks. `what`
/// names their number ("--ranks"), `fix` may say how to change it.
void require_processes(const Launcher& launcher, std::string_view what, Index ranks, std::string_view fix = "");

/// Runs a job, once in every process: shape() says what it needs and makes nothing; when each rank has its device,
/// prepare() makes and locks what the job writes to; then `body` runs on every rank: as this process's MPI rank under a
/// launcher, else on threads of this process; on GPUs with a GPU of its own, over NCCL. Throws what the first failing
/// rank threw; under MPI a failure, of shape() and prepare() too, is reported here, once, and ends the job with the
/// error's exit code; so does one of rank threads where another thread does not end. A device that is missing is a
/// BackendError, more ranks of a host than GPUs a ConfigError.
void run_job(const Launcher& launcher, const std::function<JobShape()>& shape, const std::function<void()>& prepare,
             const std::function<void(comm::World&)>& body);

/// Says on standard error that MEGALITH_FAULT asks for faults, where it does.
void warn_of_faults(const Launcher& launcher);
/// The file system of one rank, with the faults that MEGALITH_FAULT asks for.
std::shared_ptr<io::Fs> rank_fs(int rank);

/// Where this user's programs keep what they can make again: $XDG_CACHE_HOME/megalith, else ~/.cache/megalith. Empty
/// where the environment names neither.
io::Path cache_folder();

/// Prints an error as every command does and returns its exit code. `rank` < 0: not a rank of a job.
int report_error(const std::exception& error, int rank = -1);

}  // namespace megalith::apps
