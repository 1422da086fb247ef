#include <cstring>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/signals.h"
#include "apps/train/train_job.h"

namespace megalith::apps {
namespace {

/// The value of --resume.
train::Resume parse_resume(const std::string& text) {
  if (text.empty() || text == "true") return train::Resume::required;
  if (text == "auto") return train::Resume::automatic;
  throw ConfigError(str("--resume = ", text, ": must be --resume or --resume=auto"));
}

void train_once(const TrainRequest& request) {
  const Launcher launcher = detect_launcher();
  catch_stop_signals(launcher.processes > 0 ? launcher.process : -1);
  if (run_train(request) == train::Outcome::finished) return;
  const int signal = stop_signal();
  throw StoppedError(str("stopped on request", signal == 0 ? "" : str(" (", strsignal(signal), ")"),
                         ", state saved: start again with --resume"));
}

}  // namespace

void add_train(CLI::App& program) {
  const auto options = std::make_shared<TrainRequest>();
  const auto resume_text = std::make_shared<std::string>();
  CLI::App* command = program.add_subcommand("train", "Train a model from a recipe");
  options->recipe.add_to(*command);
  CLI::Option* out = command->add_option(
      "--out", options->out, "Folder for metrics, checkpoints and the resolved recipe (default: out/RECIPE)");
  command->add_option(
      "--gemm-table", options->gemm_table,
      "Use the GEMM algorithms of an earlier run on such a GPU (its OUT/gemm_table.json): the same bits");
  command->add_option(
      "--trace", options->trace,
      "Write the times of all ops and communication calls of steps 3 to 5, on all ranks and by one clock, "
      "to a file that Perfetto opens");
  command->add_option("--router-trace", options->router_trace,
                      "Write which experts every token was sent to; moe.replay = FILE repeats these decisions");
  CLI::Option* resume = command->add_flag("--resume{}", *resume_text,
                                          "Go on from the newest valid checkpoint in OUT; --resume=auto: start fresh "
                                          "where there is none");
  command->callback([options, out, resume, resume_text] {
    if (out->count() > 0 && options->out.empty())
      throw ConfigError("--out = \"\": must name a folder; leave it away for out/RECIPE");
    if (resume->count() > 0) options->resume = parse_resume(*resume_text);
    train_once(*options);
  });
}

}  // namespace megalith::apps
