#include <atomic>
#include <cstring>
#include <memory>
#include <optional>

#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"
#include "megalith/train/trainer.h"

#include "apps/command.h"
#include "apps/launch.h"

namespace megalith::apps {
namespace {

struct TrainOptions {
  std::string recipe, out, resume;
  std::vector<std::string> settings;
  int ranks = 0;
};

train::Resume parse_resume(const std::string& text, bool given) {
  if (!given) return train::Resume::no;
  if (text.empty()) return train::Resume::required;
  if (text == "auto") return train::Resume::automatic;
  throw ConfigError(str("--resume = ", text, ": must be --resume or --resume=auto"));
}

/// OUT belongs to this job from here on; what dead jobs left is cleared away.
io::RunLock claim(io::Fs& fs, const config::RunPlan& plan, const io::Path& out, train::Resume resume) {
  io::RunLock lock = io::RunLock::take(out);
  const io::Path folder = train::checkpoint_folder(plan, out);
  if (resume == train::Resume::no && !io::published(fs, folder).empty()) {
    throw ConfigError(str("--out = ", out.string(), ": ", folder.string(),
                          " holds checkpoints of an earlier run; go on with --resume, or choose another --out"));
  }
  const io::Leftovers found = io::clean_leftovers(fs, folder, lock);
  if (found.staging + found.trash > 0) {
    log::info(str("cleared ", found.staging, " unfinished saves and ", found.trash, " half-removed checkpoints from ",
                  folder.string()));
  }
  return lock;
}

/// This rank's latest communication calls, beside the error that they explain.
void keep_call_log(const comm::World& world, io::Fs& fs, const io::Path& out) {
  try {
    io::publish_file(fs, out / str("calls_rank_", world.rank(), ".txt"), world.call_log());
  } catch (const IoError& error) {
    log::warning(str("the call log was not written: ", error.what()));
  }
}

void run_train(const TrainOptions& options, train::Resume resume) {
  const Launcher launcher = detect_launcher();
  const bool first_process = launcher.process == 0;
  if (options.ranks > 0 && launcher.processes > 0 && options.ranks != launcher.processes) {
    throw ConfigError(
        str("--ranks = ", options.ranks, ": the launcher started ", launcher.processes, " processes; both must agree"));
  }
  const config::RunConfig asked = config::parse_recipe(read_recipe(options.recipe), options.recipe, options.settings);
  const Index recipe_ranks = asked.parallel.ranks.value_or(launcher.processes);
  if (launcher.processes > 0 && options.ranks == 0 && recipe_ranks != launcher.processes) {
    throw ConfigError(str("parallel.ranks = ", recipe_ranks, ": the launcher started ", launcher.processes,
                          " processes; both must agree (--ranks overrides the recipe)"));
  }
  const config::RunPlan plan = config::resolve(asked, launcher.processes > 0 ? launcher.processes : options.ranks);
  const io::Path out = options.out.empty() ? io::Path("out") / io::Path(options.recipe).stem() : io::Path(options.out);

  const std::shared_ptr<io::Fs> fs = rank_fs(launcher.process);
  const std::shared_ptr<const data::Tokenizer> tokenizer =
      data::make_tokenizer(plan.data.tokenizer, plan.data.vocab_dir, *fs);
  const data::DataSets data = data::open_data(*fs, plan.data, *tokenizer, plan.model.seq_len, comm::allowed_cores());
  std::optional<io::RunLock> lock;
  if (first_process) lock = claim(*fs, plan, out, resume);

  catch_stop_signals();
  const train::TrainInputs inputs{.plan = plan,
                                  .data = data,
                                  .tokenizer = *tokenizer,
                                  .out = out,
                                  .resume = resume,
                                  .progress = isatty(STDERR_FILENO) != 0 ? train::ProgressLine::Style::rewritten
                                                                         : train::ProgressLine::Style::lines,
                                  .stop_asked = [] { return stop_signal() != 0; }};
  std::atomic<bool> stopped{false};
  run_all_ranks(launcher, plan.grid.world_size, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> own_fs = rank_fs(world.rank());
    try {
      if (train::train(world, inputs, *own_fs) == train::Outcome::stopped) stopped = true;
    } catch (const Error& error) {
      if (error.code() == ExitCode::collective || error.code() == ExitCode::hang) keep_call_log(world, *own_fs, out);
      throw;
    }
  });
  if (!stopped) return;
  const int signal = stop_signal();
  throw StoppedError(str("stopped on request", signal == 0 ? "" : str(" (", strsignal(signal), ")"),
                         ", state saved: start again with --resume"));
}

}  // namespace

void add_train(CLI::App& program) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = program.add_subcommand("train", "Train a model as a recipe says");
  command->add_option("recipe", options->recipe, "Recipe (TOML)")->required();
  command->add_option("--set", options->settings, "Override a key: section.key=value (may be repeated)")
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--ranks", options->ranks, "Ranks, as threads of this process (default: the recipe's)")
      ->check(CLI::PositiveNumber);
  command->add_option("--out", options->out,
                      "Folder for metrics, checkpoints and the resolved recipe (default: out/RECIPE)");
  CLI::Option* resume =
      command->add_option("--resume", options->resume,
                          "Go on from the newest valid checkpoint in OUT; =auto: start fresh where there is none");
  resume->expected(0, 1)->type_name("[auto]");
  command->callback([options, resume] { run_train(*options, parse_resume(options->resume, resume->count() > 0)); });
}

}  // namespace megalith::apps
