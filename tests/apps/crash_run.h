#pragma once
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "tests/apps/process.h"

namespace megalith::support {

/// What a training run said, read from its standard error: outside the file system whose faults are tested.
struct Said {
  std::int64_t acknowledged = 0;  ///< last step with "saved step N", 0 when none
  std::int64_t resumed_at = 0;    ///< 0: from scratch
  std::string digest;             ///< the last state digest it named
};

inline Said said_by(const Finished& run) {
  Said said;
  constexpr std::string_view kDigest = ", state digest ", kStep = "step ";
  std::istringstream lines(run.err);
  for (std::string line; std::getline(lines, line);) {
    const bool saved = line.starts_with("saved ");
    const std::size_t digest = line.find(kDigest), step = line.rfind(kStep, digest);
    if ((!saved && !line.starts_with("resumed ")) || digest == std::string::npos || step == std::string::npos) continue;
    (saved ? said.acknowledged : said.resumed_at) = std::stoll(line.substr(step + kStep.size()));
    said.digest = line.substr(digest + kDigest.size(), 32);
  }
  return said;
}

/// A tiny model, trained by the program, that saves often and deletes old checkpoints. What a run leaves behind after
/// any fault and a plain restart must be what the undisturbed run leaves.
class CrashRun {
 public:
  CrashRun(std::string settings, std::int64_t steps) : settings_(std::move(settings)), steps_(steps) {
    std::ofstream text(dir_ / "text.txt");
    for (int i = 0; i < 300; ++i) text << "line " << i * 7 % 31 << " of a text that says little\n";
    text.close();
    std::ofstream(recipe()) << "[model]\nnum_layers = 2\nhidden_size = 8\nnum_heads = 2\nseq_len = 8\ndropout = 0.1\n"
                               "[train]\nglobal_batch = 4\neval_interval = 2\neval_batches = 1\n"
                               "[data]\ntokenizer = \"byte\"\nsplit = \"0.9\"\ntrain = \""
                            << (dir_ / "text.txt").string() << "\"\n[checkpoint]\ninterval = 2\n";
    const Finished whole = train("", (dir_ / "reference").string());
    if (whole.code != 0) throw std::runtime_error("the reference run failed: " + whole.err);
    digest_ = said_by(whole).digest;
    metrics_ = metrics_of((dir_ / "reference").string());
  }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  /// Trains, or goes on, in `out`; `before` stands in front of the command (environment, timeout).
  Finished train(const std::string& before, const std::string& out) const {
    return run_shell(before + " " + command(out));
  }
  /// The same, killed so many milliseconds after it has acknowledged a save.
  Finished kill_after_save(int milliseconds, const std::string& out) const {
    const std::string errors = path("stderr");
    const std::string pause = "sleep " + std::to_string(milliseconds / 1000.0);
    return run_shell(command(out) + " 2>" + errors + " & pid=$!; until grep -q '^saved ' " + errors +
                     " || ! kill -0 $pid; do sleep 0.005; done; " + pause +
                     "; kill -KILL $pid; wait $pid; code=$?; cat " + errors + " >&2; exit $code");
  }

  /// A command that trains under `run`, and goes on in `out`.
  std::string supervised(const std::string& out) const {
    return command(out, "run") + " --max-restarts 1000 --backoff 0s";
  }

  /// What is wrong after a restart that must have gone on from `acknowledged` or later; "" when all is well.
  std::string problem_of(const Finished& restarted, std::int64_t acknowledged, const std::string& out) const {
    if (restarted.code != 0) return "the restart failed: " + restarted.err;
    const Said said = said_by(restarted);
    if (said.resumed_at < acknowledged)
      return "step " + std::to_string(acknowledged) + " was acknowledged, the restart went on from " +
             std::to_string(said.resumed_at);
    if (said.digest != digest_) return "another final state: " + said.digest + " for " + digest_;
    if (metrics_of(out) != metrics_) return "other metrics";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out)) {
      const std::string name = entry.path().filename().string();
      if (name.find(".tmp-") != std::string::npos || name.find(".trash-") != std::string::npos)
        return "left over: " + name;
    }
    return "";
  }

 private:
  std::string recipe() const { return path("crash.toml"); }
  std::string command(const std::string& out, const std::string& name = "train") const {
    return program() + ' ' + name + ' ' + recipe() + " --out " + out +
           " --resume=auto --set train.steps=" + std::to_string(steps_) + " " + settings_;
  }
  std::string settings_;
  std::int64_t steps_;
  TempDir dir_;
  std::string digest_;
  std::vector<std::string> metrics_;
};

}  // namespace megalith::support
