#pragma once
#include <functional>
#include <memory>
#include <string>

#include "megalith/comm/world.h"
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
};

/// Runs `body` on every rank: as this process's MPI rank under a launcher, else on threads of this process; on GPUs
/// with a GPU of its own, over NCCL. prepare() runs before it, once in every process. Throws what the first failing
/// rank threw; under MPI a failure, of prepare() too, is reported here, once, and ends the job with the error's exit
/// code.
void run_job(const Launcher& launcher, const std::function<JobShape()>& prepare,
             const std::function<void(comm::World&)>& body);

/// The file system of one rank, with the faults that MEGALITH_FAULT asks for.
std::shared_ptr<io::Fs> rank_fs(int rank);

/// Where this user's programs keep what they can make again: $XDG_CACHE_HOME/megalith, else ~/.cache/megalith. Empty
/// where the environment names neither.
io::Path cache_folder();

/// Catches SIGINT, SIGTERM and SIGUSR1: the first asks to finish the step, save and stop; a second ends the process at
/// once. stop_signal() names the signal that came, 0 for none.
void catch_stop_signals();
int stop_signal();

/// Prints an error as every command does and returns its exit code. `rank` < 0: not a rank of a job.
int report_error(const std::exception& error, int rank = -1);

}  // namespace megalith::apps
