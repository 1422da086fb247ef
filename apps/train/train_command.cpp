#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/signals.h"
#include "apps/train/train_options.h"

namespace megalith::apps {
namespace {

void train_once(const TrainRequest& request) {
  const Launcher launcher = detect_launcher();
  catch_stop_signals(launcher.processes > 0 ? launcher.process : -1);
  if (run_train(request) == train::Outcome::finished) return;
  const std::string reason = stop_reason();
  throw StoppedError(str("stopped on request", reason.empty() ? "" : str(" (", reason, ")"),
                         ", state saved: start again with --resume"));
}

}  // namespace

void add_train(CLI::App& program) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* command = program.add_subcommand("train", "Train a model from a recipe");
  options->add_to(*command);
  command->callback([options] { train_once(options->request()); });
}

}  // namespace megalith::apps
