#include "apps/train/train_job.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/config/keys.h"
#include "megalith/convert/hf_model.h"
#include "megalith/io/log_file.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"
#include "megalith/train/position_files.h"
#include "megalith/train/router_trace.h"
#include "megalith/train/run_history.h"
#include "megalith/train/saved_run.h"
#include "megalith/train/trace_file.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/checkpoint/task_init.h"
#include "apps/program/launch.h"
#include "apps/program/output_path.h"
#include "apps/program/signals.h"
#include "apps/program/terminal.h"
#include "apps/program/vocabulary.h"
#include "apps/train/run_inputs.h"

namespace megalith::apps {
namespace {

/// Returns f(). Its errors begin with the setting that names the folder.
template <class F>
auto naming(const std::string& setting, F&& f) {
  try {
    return f();
  } catch (const IoError& error) {
    throw IoError(str(setting, ": ", error.what()));
  }
}

/// Locks OUT and the folder of checkpoints for this job; no other job's OUT may contain that folder. Removes the
/// remains of dead jobs. A job that cannot start locks nothing and creates at most a folder of checkpoints whose OUT
/// cannot be created.
std::vector<io::RunLock> claim(io::Fs& fs, const config::RunPlan& plan, const io::Path& out, train::Resume resume) {
  const bool apart = !plan.checkpoint.dir.empty();
  const io::Path folder = train::checkpoint_folder(plan, out);
  const std::string of_out = "--out = " + out.string(),
                    of_folder = apart ? "checkpoint.dir = " + folder.string() : of_out;
  const bool none = naming(of_folder, [&] { return io::published(fs, folder).empty(); });
  if (resume == train::Resume::required && none) throw train::nothing_to_resume(folder);
  if (resume == train::Resume::no && !none) {
    throw ConfigError(str(of_folder, apart ? ": " : ": " + folder.string() + ' ',
                          "holds checkpoints of an earlier run; go on with --resume, or choose another ",
                          apart ? "checkpoint.dir" : "--out"));
  }
  const auto take = [&](const io::Path& taken, const std::string& setting) {
    return naming(setting, [&] { return io::RunLock::take(taken); });
  };
  // If a separate folder is refused, no new OUT remains.
  std::optional<io::RunLock> lock_of_out;
  if (!apart || fs.exists(out)) lock_of_out = take(out, of_out);
  io::RunLock lock_of_folder = take(folder, of_folder);
  if (!lock_of_out) lock_of_out = take(out, of_out);
  const io::Leftovers found = io::clean_leftovers(fs, folder, lock_of_folder);
  int files = io::clean_temporaries(fs, out, *lock_of_out);
  if (apart) files += io::clean_temporaries(fs, folder, lock_of_folder);
  if (found.staging + found.trash + files > 0) {
    log::info(str("cleared what a dead job left: ", found.staging, " unfinished saves, ", found.trash,
                  " half-removed checkpoints, ", files, " unfinished files"));
  }
  std::vector<io::RunLock> locks;
  locks.push_back(std::move(*lock_of_out));
  locks.push_back(std::move(lock_of_folder));
  return locks;
}

/// Writes the error to history.jsonl and, if it is one of communication, this rank's latest calls next to it. If a disk
/// does not answer, and the others may wait for it, the error is delayed for kWrites only.
void keep_fault(const comm::World& world, const std::shared_ptr<io::Fs>& fs, const io::Path& out, Index step,
                const Error& error) {
  constexpr auto kWrites = std::chrono::seconds(2);
  const bool has_calls = error.code() == ExitCode::collective || error.code() == ExitCode::hang;
  const std::string rank_text = error.code() == ExitCode::non_finite ? "" : str(" rank ", world.rank());  // else of all
  auto written = std::make_shared<std::promise<void>>();
  std::future<void> is_written = written->get_future();
  std::thread([fs, written, out,
               line = train::history_line("fault", step, str(code_name(error.code()), rank_text, ": ", error.what())),
               rank = world.rank(), calls = has_calls ? world.call_log() : std::string()] {
    try {
      if (!calls.empty()) io::publish_file(*fs, out / str("calls_rank_", rank, ".txt"), calls);
    } catch (const IoError& failure) {
      log::warning(str("the call log was not written: ", failure.what()));
    }
    try {
      io::LogFile(*fs, out / train::kHistoryName).write(line);
    } catch (const IoError&) {  // the error itself is printed
    }
    written->set_value();
  }).detach();
  is_written.wait_for(kWrites);
}

/// The value of --gemm-table; nothing if it was not given.
std::optional<ops::KnownGemms> read_gemm_table(io::Fs& fs, const config::RunPlan& plan, const std::string& file) {
  if (file.empty()) return std::nullopt;
  if (!plan.chooses_gemms()) {
    throw ConfigError(str("--gemm-table = ", file,
                          ": such a table needs device.type = \"cuda\" and train.gemm = \"timed\"; leave it away"));
  }
  return ops::KnownGemms{file, ops::parse_gemm_table(fs.map(file).text(), file)};
}

/// Where progress goes: to standard error. Also to standard output, as plain lines, if only that is redirected (`| tee
/// log`).
train::ProgressLine::Screen screen() {
  if (isatty(STDERR_FILENO) != 0 && isatty(STDOUT_FILENO) == 0) return {.file = stdout};
  return {.file = stderr, .columns = terminal_columns};
}

/// Shared by all ranks of this process.
struct Job {
  const config::RunPlan& plan;
  io::Path out;
  std::shared_ptr<io::Fs> fs;
  io::Path init;
  std::shared_ptr<const train::RunData> data;
  train::DataIdentity identity;
  std::shared_ptr<const std::vector<train::ChoiceTask>> choice_tasks;
  std::optional<ops::KnownGemms> gemm_table;
  std::vector<io::RunLock> locks;  ///< of the first process
};

/// The recipe of the newest checkpoint of a folder with a readable manifest.
std::optional<config::RunConfig> saved_recipe(io::Fs& fs, const io::Path& folder) {
  const auto unless_it_fails = [](auto&& read) -> decltype(read()) {
    try {
      return read();
    } catch (const Error&) {  // claim() and the resume report it
      return {};
    }
  };
  for (const io::StepFolder& step : unless_it_fails([&] { return io::published(fs, folder); })) {
    auto recipe = unless_it_fails(
        [&] { return std::optional(recipe_of(checkpoint::CheckpointReader(fs, folder / step.name()))); });
    if (recipe) return recipe;
  }
  return std::nullopt;
}

/// In earlier versions recipes without model.vocab_size had GPT-2's number of ids for every tokenizer except `byte`. A
/// run from that time keeps its model.
void keep_former_vocab_size(io::Fs& fs, const io::Path& folder, config::RunConfig& asked) {
  constexpr Index kFormer = 50'257;
  if (asked.model.vocab_size || asked.model.preset || asked.data.tokenizer == "byte") return;
  const std::optional<config::RunConfig> saved = saved_recipe(fs, folder);
  if (saved && saved->model.vocab_size == kFormer) asked.model.vocab_size = kFormer;
}

/// A test set that training scored would be one to choose runs by.
void refuse_test_data(config::RunConfig& asked) {
  if (!asked.data.test || asked.data.test->empty()) return;
  asked.problems.push_back(str("data.test = ", config::value_text(&asked.data.test),
                               ": is for `finetune`, which scores it once; remove it, or set data.test=[], and score a "
                               "checkpoint by `eval OUT --task ",
                               asked.task.name.value_or("TASK"), " --data FILE`"));
  asked.data.test.reset();
}

config::RunPlan plan_under(const Launcher& launcher, const TrainRequest& options, train::Resume resume) {
  const RecipeOptions& recipe = options.recipe;
  const int processes = launcher.processes;
  if (recipe.ranks > 0) require_processes(launcher, "--ranks", recipe.ranks);
  config::RunConfig asked = recipe.parse();
  refuse_test_data(asked);
  if (recipe.ranks == 0 && asked.parallel.ranks)
    require_processes(launcher, "parallel.ranks", *asked.parallel.ranks, " (--ranks overrides the recipe)");
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  const std::string dir = asked.checkpoint.dir.value_or("");
  const io::Path own = dir.empty() ? out_of(options) / "checkpoints" : io::Path(dir);
  asked = with_task_model(*fs, std::move(asked), resume == train::Resume::no ? io::Path() : own);
  if (resume != train::Resume::no) keep_former_vocab_size(*fs, own, asked);
  prepare_gpus_for_training(asked);
  return config::resolve(asked, processes > 0 ? processes : recipe.ranks, count_ids(*fs));
}

/// Identifies a checkpoint, "manifest 0123456789abcdef", or a Hugging Face folder.
std::string content_of(io::Fs& fs, const io::Path& checkpoint) {
  if (convert::is_hf_folder(fs, checkpoint)) {
    std::string files(fs.map(checkpoint / "config.json").text());
    for (const std::string& name : fs.list(checkpoint))
      if (name.ends_with(".safetensors")) files += str('\n', name, ' ', fs.file_size(checkpoint / name));
    return "config.json and files of hash " + hex64(fnv1a(files));
  }
  return "manifest " + hex64(fnv1a(fs.map(checkpoint / io::kManifestName).text()));
}

/// The newest published checkpoint of a folder, by name and content: "step_00000100, manifest 0123456789abcdef".
std::string newest_checkpoint(const io::Path& folder) {
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  try {
    const std::vector<io::StepFolder> found = io::published(*fs, folder);
    return found.empty() ? "none" : str(found.front().name(), ", ", content_of(*fs, folder / found.front().name()));
  } catch (const Error&) {
    return "not readable";  // claim() and the resume report it
  }
}

/// Refuses a folder if it, or a folder above it, is a file or a link that leads nowhere.
void require_no_file(io::Fs& fs, const io::Path& folder, std::string_view setting) {
  require_links(setting, folder);
  io::Path path = folder;
  while (!path.empty() && !fs.exists(path)) path = path.parent_path();
  if (path.empty() || fs.is_dir(path)) return;
  throw ConfigError(
      str(setting, " = ", folder.string(), path == folder ? "" : ": " + path.string(), ": is a file: name a folder"));
}

Job prepare(config::RunPlan& plan, const TrainRequest& options, const Launcher& launcher, train::Resume resume) {
  const io::Path out = out_of(options);
  const std::shared_ptr<io::Fs> fs = rank_fs(launcher.process);
  require_no_file(*fs, out, "--out");
  require_no_file(*fs, plan.checkpoint.dir, "checkpoint.dir");
  const std::optional<ops::KnownGemms> gemm_table = read_gemm_table(*fs, plan, options.gemm_table);
  const io::Path init = init_of(*fs, plan, out, resume);
  const RunInputs inputs = open_run_inputs(*fs, plan);
  train::require_init_fits(*fs, plan, inputs.identity, init);
  if (launcher.process == 0) print_notes(plan, inputs.data->notes());
  return {plan, out, fs, init, inputs.data, inputs.identity, inputs.choice_tasks, gemm_table, {}};
}

/// Checks the command line alone. Returns whether a second folder must be checked to be shared.
train::Facts facts_of(const TrainRequest& options, const config::RunPlan& plan, train::Resume resume) {
  constexpr const char* kResume[] = {"no", "yes", "auto"};
  return {{"--resume", kResume[static_cast<int>(resume)]},
          {"--trace", options.trace.empty() ? "no" : "yes"},
          {"--router-trace", options.router_trace.empty() ? "no" : "yes"},
          {"checkpoint.dir", plan.checkpoint.dir.empty() ? "unset" : "a folder"}};
}

/// The facts that this process found at the paths of the recipe.
train::Facts facts_of(const Job& job, train::Resume resume) {
  const auto tokens = [](Index count, std::uint64_t fingerprint) {
    return str(count, " tokens, fingerprint ", hex64(fingerprint));
  };
  train::Facts facts = {{"what data.tokenizer has", "a vocabulary of hash " + hex64(job.identity.tokenizer)},
                        {"what data.train has", tokens(job.data->train().tokens, job.identity.corpus)}};
  if (const train::RunData::Facts valid = job.data->valid(); valid.samples > 0)
    facts.emplace_back("the held-out data", tokens(valid.tokens, valid.fingerprint));
  if (!job.choice_tasks->empty())
    facts.emplace_back("what eval.tasks has", train::choice_tasks_text(*job.choice_tasks));
  if (!job.init.empty()) facts.emplace_back(str("what ", job.plan.init_key(), " has"), content_of(*job.fs, job.init));
  if (const std::string& replay = job.plan.model.moe.replay; !replay.empty())
    facts.emplace_back("what moe.replay has", "decisions of hash " + hex64(fnv1a(job.fs->map(replay).text())));
  if (resume != train::Resume::no)
    facts.emplace_back("the newest checkpoint", newest_checkpoint(train::checkpoint_folder(job.plan, job.out)));
  return facts;
}

/// Processes may be on different hosts.
void require_shared_folders(comm::World& world, io::Fs& fs, const Job& job) {
  train::require_shared(world, fs, job.out, "--out");
  if (!job.plan.checkpoint.dir.empty()) train::require_shared(world, fs, job.plan.checkpoint.dir, "checkpoint.dir");
}

}  // namespace

io::Path out_of(const TrainRequest& options) {
  return options.out.empty() ? io::Path("out") / io::Path(options.recipe.file).stem() : io::Path(options.out);
}

std::string init_content(io::Fs& fs, const io::Path& init) {
  const bool is_hf = convert::is_hf_folder(fs, init);
  return content_of(fs, is_hf ? init : checkpoint_folder(fs, init, checkpoint::OnCorrupt::previous));
}

train::Outcome run_train(const TrainRequest& options) {
  const train::Resume resume = options.resume;
  const Launcher launcher = detect_launcher();
  config::RunPlan plan;
  std::optional<Job> job;
  std::atomic<bool> stopped{false};
  const io::Path cache = cache_folder();
  const auto shape = [&] {
    plan = plan_under(launcher, options, resume);
    if (!options.trace.empty()) train::require_trace(plan, options.trace);
    if (!options.router_trace.empty()) train::require_router_trace(plan, options.router_trace);
    if (resume != train::Resume::no &&
        newest_checkpoint(train::checkpoint_folder(plan, out_of(options))).starts_with("step_"))
      set_unsaved(Unsaved::nothing);
    JobShape needed = shape_of(plan);
    const train::Facts more = facts_of(options, plan, resume);
    needed.facts.insert(needed.facts.end(), more.begin(), more.end());
    needed.start = resume == train::Resume::no ? train::Start::fresh : train::Start::resumed;
    return needed;
  };
  const auto read = [&] { job.emplace(prepare(plan, options, launcher, resume)); };
  const auto found = [&] { return facts_of(*job, resume); };
  const auto claim_folders = [&] { job->locks = claim(*job->fs, plan, job->out, resume); };
  const auto body = [&](comm::World& world) {
    const std::shared_ptr<io::Fs> own_fs = world.rank() == launcher.process ? job->fs : rank_fs(world.rank());
    const auto on_fault = [&](Index step, const Error& error) {
      if (!is_verdict_of_all(error.code())) keep_fault(world, own_fs, job->out, step, error);
    };
    const train::TrainInputs inputs{.plan = job->plan,
                                    .data = *job->data,
                                    .identity = job->identity,
                                    .out = job->out,
                                    .resume = resume,
                                    .init = job->init,
                                    .screen = screen(),
                                    .stop_asked = stop_asked,
                                    .stop_reason = stop_reason,
                                    .require_folders =
                                        [&] {
                                          for (const io::RunLock& lock : job->locks) lock.require_in_place();
                                        },
                                    .gemm_table = job->gemm_table,
                                    .cache = cache,
                                    .router_trace = options.router_trace,
                                    .on_fault = on_fault,
                                    .choice_tasks = *job->choice_tasks,
                                    .trace = options.trace};
    if (launcher.processes > 0) require_shared_folders(world, *own_fs, *job);
    const train::PositionFiles positions(world, job->out, plan.timeout_s);
    if (train::train(world, inputs, *own_fs) == train::Outcome::stopped) stopped = true;
  };
  run_job(launcher, {.shape = shape, .read = read, .found = found, .claim = claim_folders, .body = body});
  return stopped ? train::Outcome::stopped : train::Outcome::finished;
}

}  // namespace megalith::apps
