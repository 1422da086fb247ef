#include "apps/finetune/finetune_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <sstream>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/listed_problems.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

#include "apps/checkpoint/task_init.h"
#include "apps/eval/inference.h"
#include "apps/program/launch.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

/// The numbers of "A,B,C". Reports what is no number, and numbers that come twice.
template <class Number>
std::vector<Number> parse_list(const char* option, const std::optional<std::string>& text, const char* rule,
                               Problems& problems) {
  std::vector<Number> numbers;
  if (!text) return numbers;
  std::istringstream items(*text + ',');
  for (std::string item; std::getline(items, item, ',');) {
    Number number = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), number);
    const bool is_number = error == std::errc() && end == item.data() + item.size();
    if (!is_number || !(number > 0) || !std::isfinite(static_cast<double>(number)))
      problems.add(option, item.empty() ? "\"\"" : item, rule);
    else if (std::ranges::find(numbers, number) != numbers.end())
      problems.add(option, item, "comes twice; name each once");
    else
      numbers.push_back(number);
  }
  return numbers;
}

/// Files that share a column of table 5 have no score that could stand there.
void check_files(const char* key, tasks::Task task, const std::vector<std::string>& files, Problems& problems) {
  if (task != tasks::Task::mnli) {
    problems.require(files.size() <= 1, key, files.size(), str("must name one file of ", tasks::title_of(task)));
    return;
  }
  const auto mismatched = std::ranges::count_if(files, [](const std::string& file) {
    return io::Path(file).filename().string().find("mismatched") != std::string::npos;
  });
  problems.require(mismatched <= 1 && std::ssize(files) - mismatched <= 1, key, str(files.size(), " files"),
                   "must name at most one matched and one mismatched set, whose name has \"mismatched\"");
}

/// Rules that hold for `finetune` alone.
void check_recipe(const config::RunConfig& asked, Problems& problems) {
  const std::optional<tasks::Task> task = tasks::task_named(asked.task.name.value_or(""));
  if (!asked.task.name) problems.add_line("task.name is not set: `finetune` is for recipes with [task]");
  const std::vector<std::string> valid = asked.data.valid.value_or(std::vector<std::string>());
  if (valid.empty()) problems.add_line("data.valid is not set: its score chooses the runs");
  if (task) {
    check_files("data.valid", *task, valid, problems);
    check_files("data.test", *task, asked.data.test.value_or(std::vector<std::string>()), problems);
  }
  problems.require(!asked.checkpoint.dir || asked.checkpoint.dir->empty(), "checkpoint.dir",
                   asked.checkpoint.dir.value_or(""), "does not go with `finetune`: runs lie in OUT/runs; remove it");
}

/// Adds what an error lists, each problem once.
void add_problems(const ConfigError& error, std::vector<std::string>& lines) {
  const auto* const listed = dynamic_cast<const ListedProblems*>(&error);
  for (const std::string& line : listed != nullptr ? listed->lines() : std::vector<std::string>{error.what()})
    if (std::ranges::find(lines, line) == lines.end()) lines.push_back(line);
}

/// Those of the first point. Throws ConfigError with the problems of all points, each once.
config::RunPlan resolve_all(io::Fs& fs, const config::RunConfig& asked, int ranks,
                            const std::vector<TunedPoint>& points) {
  std::optional<config::RunPlan> first;
  std::vector<std::string> lines;
  for (const TunedPoint& point : points) {
    config::RunConfig one = asked;
    if (point.lr > 0) one.optimizer.lr = point.lr;
    if (point.batch > 0) one.train.global_batch = point.batch;
    try {
      config::RunPlan plan = config::resolve(one, ranks, count_ids(fs));
      if (!first) first = std::move(plan);
    } catch (const ConfigError& error) {
      add_problems(error, lines);
    }
  }
  Problems problems;
  for (std::string& line : lines) problems.add_line(std::move(line));
  problems.throw_if_any(asked.source);
  return *first;
}

/// The keys of the recipe that an inference on the grid of training takes.
std::vector<std::string> grid_settings(const config::RunConfig& asked) {
  config::RunConfig grid;
  grid.parallel = asked.parallel;
  grid.parallel.cp.reset();
  grid.parallel.sequence_parallel.reset();
  grid.parallel.tp_overlap.reset();
  grid.device.threads = asked.device.threads;
  std::vector<std::string> settings;
  for (const auto& [key, value] : config::toml_values(grid)) settings.push_back(str(key, '=', value));
  return settings;
}

/// Each rate with each batch. 0 stands for the recipe's.
std::vector<TunedPoint> pairs_of(const std::vector<double>& rates, const std::vector<Index>& batches) {
  std::vector<TunedPoint> points;
  for (const double lr : rates.empty() ? std::vector<double>{0} : rates)
    for (const Index batch : batches.empty() ? std::vector<Index>{0} : batches)
      points.push_back({.lr = lr, .batch = batch});
  return points;
}

}  // namespace

std::string TunedPoint::name() const { return str("lr_", exact(lr), "_batch_", batch, "_seed_", seed); }

std::vector<std::string> TunedPoint::settings() const {
  return {str("optimizer.lr=", exact(lr)), str("train.global_batch=", batch), str("train.seed=", seed), "data.test=[]"};
}

std::vector<TunedPoint> FinetuneJob::seeds_of(const TunedPoint& best) const {
  std::vector<TunedPoint> points(static_cast<std::size_t>(seeds), best);
  for (std::size_t i = 0; i < points.size(); ++i) points[i].seed += static_cast<Index>(i);
  return points;
}

FinetuneJob plan_finetune(io::Fs& fs, const FinetuneOptions& options) {
  FinetuneJob job{
      .plan = {}, .grid = {}, .out = {}, .search = {}, .seeds = options.seeds, .ensemble = options.ensemble};
  Problems problems;
  job.search =
      pairs_of(parse_list<double>("--lr", options.lr, "must be numbers above 0, as 1e-5,2e-5", problems),
               parse_list<Index>("--batch", options.batch, "must be whole numbers from 1, as 16,32", problems));
  problems.require(options.seeds >= 1, "--seeds", options.seeds, "must be at least 1");
  problems.require(!options.ensemble || options.seeds != 1, "--ensemble", "true", "needs --seeds above 1");
  check_both([&] { problems.throw_if_any("finetune"); },
             [&] {
               const config::RunConfig asked = options.recipe.parse();
               check_both(
                   [&] {
                     Problems of_recipe;
                     check_recipe(asked, of_recipe);
                     of_recipe.throw_if_any("finetune");
                   },
                   [&] {
                     const config::RunConfig whole = with_task_model(fs, asked);
                     job.plan = resolve_all(fs, whole, options.recipe.ranks, job.search);
                     job.grid = grid_settings(whole);
                   });
             });
  job.task = tasks::task_named(job.plan.task.name).value();
  job.out = options.out.empty() ? io::Path("out") / io::Path(options.recipe.file).stem() : io::Path(options.out);
  for (TunedPoint& point : job.search) {
    if (point.lr == 0) point.lr = job.plan.optimizer.lr;
    if (point.batch == 0) point.batch = job.plan.train.global_batch;
    point.seed = static_cast<Index>(job.plan.train.seed);
  }
  return job;
}

}  // namespace megalith::apps
