#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "apps/finetune/finetune.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/signals.h"

namespace megalith::apps {
namespace {

void run_finetune(const FinetuneOptions& options) {
  const Launcher launcher = detect_launcher();
  if (launcher.processes > 0) {
    throw ConfigError(str("finetune: a launcher started ", launcher.processes,
                          launcher.processes == 1 ? " process" : " processes",
                          ": ranks are threads of one process (--ranks); start it without mpirun or srun. It takes "
                          "runs that `train` made under a launcher in OUT/runs (docs/finetuning.md)"));
  }
  catch_stop_signals(-1);
  finetune(plan_finetune(*rank_fs(0), options), options);
}

}  // namespace

void add_finetune(CLI::App& program) {
  const auto options = std::make_shared<FinetuneOptions>();
  CLI::App* command = program.add_subcommand(
      "finetune",
      "Fine-tune a model on a task: choose rate and batch by one seed, train several seeds, report their median beside "
      "the paper's (docs/finetuning.md). A restart goes on");
  options->recipe.add_to(*command);
  CLI::Option* out =
      command->add_option("--out", options->out, "Folder for all runs and the report (default: out/RECIPE)");
  command
      ->add_option("--seeds", options->seeds,
                   "Runs with the best rate and batch: seeds train.seed, train.seed + 1, ...")
      ->check(between(1, 1000))
      ->capture_default_str();
  command->add_option("--lr", options->lr, "Rates to choose from: 1e-5,2e-5 (default: the recipe's)");
  command->add_option("--batch", options->batch, "Batches to choose from: 16,32 (default: the recipe's)");
  command->add_flag("--ensemble", options->ensemble,
                    "Also score the runs of all seeds together, by the mean of their probabilities");
  command->callback([options, out] {
    if (out->count() > 0 && options->out.empty())
      throw ConfigError("--out = \"\": must name a folder; leave it away for out/RECIPE");
    run_finetune(*options);
  });
}

}  // namespace megalith::apps
