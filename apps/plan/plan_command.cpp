#include <iostream>
#include <memory>

#include <malloc.h>

#include "megalith/base/log.h"
#include "megalith/report/plan_report.h"

#include "apps/checkpoint/task_init.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/recipe_options.h"

namespace megalith::apps {
namespace {

struct PlanOptions {
  RecipeOptions recipe;
  std::string format = "text";
};

void run_plan(const PlanOptions& options) {
  // Every stage has lists of its step of some megabytes. Given back to the system after each stage, their pages would
  // take more than half of the time.
  constexpr int kMaxMmapThreshold = 32 << 20;  // glibc refuses more
  mallopt(M_MMAP_THRESHOLD, kMaxMmapThreshold);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  config::RunPlan plan = plan_of(options.recipe);
  // The ranks of a launcher are processes, which read each other's rows on one host only, and where they share memory.
  nn::ExpertDispatcher& dispatcher = plan.model.moe.dispatcher;
  const Launcher launcher = detect_launcher();
  const bool on_cpu = plan.device == Device::cpu, reaches = on_cpu || plan.transfers == comm::Transport::copy_engines;
  const bool shares = launcher.processes == 0 || (launcher.is_on_one_host && (on_cpu || plan.share_gpu_memory));
  const bool reads_rows = reaches && shares;
  if (!reads_rows && dispatcher == nn::ExpertDispatcher::automatic) dispatcher = nn::ExpertDispatcher::all_to_all;
  const PlannedRanks planned = plan_ranks(plan);
  for (const std::string& warning : plan.warnings()) log::warning(warning);
  std::cout << (options.format == "json" ? plan_json(plan, planned) : plan_text(plan, planned));
}

}  // namespace

void add_plan(CLI::App& program) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = program.add_subcommand(
      "plan", "Print the memory that a recipe takes, by owner and rank, without running it (needs no GPU)");
  options->recipe.add_to(*command);
  command->add_option("--format", options->format, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->callback([options] { run_plan(*options); });
}

}  // namespace megalith::apps
