#pragma once
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith::support {

/// Runs without an end of which ranks stand still.
class HangRuns : public Program {
 protected:
  HangRuns() {
    std::ofstream(dir_ / "rank.sh") << "echo $$ >$1$OMPI_COMM_WORLD_RANK\n"
                                       "shift\n"
                                       "[ -n \"${RANKS_PER_HOST:-}\" ] || exec \"$@\"\n"
                                       "exec unshare --uts bash -c 'hostname host$((OMPI_COMM_WORLD_RANK / "
                                       "RANKS_PER_HOST)); exec \"$@\"' bash \"$@\"\n";
  }
  std::string train_forever(const std::string& name, const std::string& settings) const {
    return program() + " train " + recipe() + " --out " + out(name) + " --set train.steps=1000000 " +
           "--set train.eval_interval=0 --set parallel.timeout_s=3 " + settings;
  }

  struct Stopped {
    std::vector<int> ranks;
    int moment = 0;                ///< ms after the ninth step
    std::string environment = "";  ///< of all ranks
  };
  /// Under mpirun, as `processes` processes, of which some are stopped. What they print is `err`; `out` is how many
  /// seconds the job took from then on.
  Finished run_stopped(const std::string& name, int processes, const std::string& settings,
                       const Stopped& stopped) const {
    const std::string pids = out(name + ".pid."), metrics = out(name) + "/metrics.jsonl";
    std::string kills;
    for (const int rank : stopped.ranks) kills += " $(cat " + pids + std::to_string(rank) + ")";
    return run_shell("timeout 90 env " + stopped.environment + " " +
                     mpirun(processes, "bash " + out("rank.sh") + " " + pids + " " + train_forever(name, settings)) +
                     " >&2 & job=$!; until grep -qs '\"step\":9,' " + metrics +
                     " || ! kill -0 $job; do sleep 0.05; done; sleep 0." +
                     std::to_string(1000 + stopped.moment).substr(1) + "; kill -STOP" + kills +
                     "; start=$SECONDS; wait $job; code=$?; echo $((SECONDS - start)); kill -9 $(cat " + pids +
                     "*) 2>/dev/null; exit $code");
  }
};

}  // namespace megalith::support
