#include <cstdio>
#include <memory>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fs.h"
#include "megalith/report/graphs_report.h"

#include "apps/checkpoint/task_init.h"
#include "apps/program/command.h"
#include "apps/program/recipe_options.h"

namespace megalith::apps {
namespace {

struct GraphsOptions {
  RecipeOptions recipe;
  std::string format = "text";
  std::string svg;
  int rank = 0;
};

std::string report_of(const GraphsOptions& options, const config::RunPlan& plan) try {
  return graphs_report(plan, options.format == "json" ? GraphsFormat::json : GraphsFormat::text);
} catch (ConfigError& error) {
  error.put_in_front(str(options.recipe.file, ": "));
  throw;
}

void run_graphs(const GraphsOptions& options) {
  const config::RunPlan plan = plan_of(options.recipe);
  const std::string text = report_of(options, plan);
  if (!options.svg.empty()) io::publish_file(*io::posix_fs(), options.svg, graphs_picture(plan, options.rank));
  std::fwrite(text.data(), 1, text.size(), stdout);  // main checks that it could be written
}

}  // namespace

void add_graphs(CLI::App& program) {
  auto options = std::make_shared<GraphsOptions>();
  CLI::App* command = program.add_subcommand(
      "graphs", "Print the CUDA graphs that a recipe would run from, their launches and bytes (needs no GPU)");
  options->recipe.add_to(*command);
  command->add_option("--format", options->format, "text or json")->check(CLI::IsMember({"text", "json"}));
  CLI::Option* svg = command->add_option("--svg", options->svg, "File to draw one rank's order of graphs into");
  command->add_option("--rank", options->rank, "The rank that --svg draws")->capture_default_str()->needs(svg);
  command->footer(kGraphsJsonKeys);
  command->callback([options] { run_graphs(*options); });
}

}  // namespace megalith::apps
