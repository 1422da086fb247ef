#pragma once
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/apps/process.h"

namespace megalith::support {

/// A folder with a text and a recipe of a tiny model on it.
class Program : public ::testing::Test {
 protected:
  Program() {
    std::ofstream text(dir_ / "text.txt");
    for (int i = 0; i < 400; ++i)
      text << "the " << i * 7 % 31 << "th line of a text that says little, " << i << " times.\n";
    std::ofstream(recipe()) << "[model]\nnum_layers = 4\nhidden_size = 20\nnum_heads = 4\nseq_len = 16\ndropout = 0.1\n"
                               "[train]\nsteps = 8\nglobal_batch = 8\neval_interval = 4\neval_batches = 2\n"
                               "[optimizer]\nlr = 3e-3\nwarmup_steps = 2\n"
                               "[data]\ntokenizer = \"byte\"\ntrain = \""
                            << (dir_ / "text.txt").string() << "\"\nsplit = \"0.9\"\n";
  }
  std::string recipe() const { return (dir_ / "tiny.toml").string(); }
  std::string out(const std::string& name) const { return (dir_ / name).string(); }
  std::string train(const std::string& name, const std::string& more = "") const {
    return "megalith" + train_arguments(name, more);
  }
  /// As a process of the shell's own, for mpirun and for $!.
  std::string train_process(const std::string& name, const std::string& more = "") const {
    return program() + train_arguments(name, more);
  }
  std::vector<std::string> metrics(const std::string& name) const { return metrics_of(out(name)); }
  TempDir dir_;

 private:
  std::string train_arguments(const std::string& name, const std::string& more) const {
    return " train " + recipe() + " --out " + out(name) + " " + more;
  }
};

/// Commands of a shell that wait for a condition, two minutes at most: what never comes fails a test, and does not hold
/// up the suite.
inline std::string wait_until(const std::string& condition) {
  return "for tick in $(seq 6000); do { " + condition + "; } && break; sleep 0.02; done; ";
}

/// The same until the run that writes into the folder `out`, or one of several (`*`), has completed a step.
inline std::string wait_for_step(const std::string& out, int step) {
  return wait_until("grep -qs '\"step\":" + std::to_string(step) + ",' " + out + "/metrics.jsonl");
}

/// What the shell does after the third step of a run without an end, `train` into the folder `busy`: $pid is the run.
inline Finished beside_a_run(const std::string& train, const std::string& busy, const std::string& commands) {
  return run_shell(train + " --set train.steps=100000 --set train.eval_interval=0 & pid=$!; " + wait_for_step(busy, 3) +
                   commands);
}

inline const std::string kStop = "kill -USR1 $pid; wait $pid";

}  // namespace megalith::support
