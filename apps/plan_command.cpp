#include <iomanip>
#include <iostream>
#include <memory>

#include <nlohmann/json.hpp>

#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/train/engine.h"

#include "apps/command.h"
#include "apps/recipe_options.h"

namespace megalith::apps {
namespace {

struct PlanOptions {
  RecipeOptions recipe;
  std::string format = "text";
};

void print_text(const config::RunPlan& plan, const std::vector<BytesByOwner>& ranks) {
  std::cout << "grid " << config::grid_text(plan) << ", " << plan.grid.world_size << " ranks, "
            << model::count_parameters(plan.model) << " parameters, " << plan.train.precision << "\n";
  std::vector<std::string> owners;
  for (const auto& [owner, bytes] : ranks.front()) owners.push_back(owner);
  std::cout << std::left << std::setw(6) << "rank" << std::right;
  for (const std::string& owner : owners) std::cout << std::setw(18) << owner;
  std::cout << std::setw(18) << "total"
            << "\n";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    std::cout << std::left << std::setw(6) << rank << std::right;
    for (const std::string& owner : owners) std::cout << std::setw(18) << ranks[rank].at(owner);
    std::cout << std::setw(18) << total(ranks[rank]) << "  " << human_bytes(total(ranks[rank])) << "\n";
  }
  for (const std::string& owner : train::measured_owners(plan))
    std::cout << "not included: " << owner << ", which a run measures when it starts\n";
}

void print_json(const config::RunPlan& plan, const std::vector<BytesByOwner>& ranks) {
  nlohmann::ordered_json out;
  out["grid"] = config::grid_text(plan);
  out["parameters"] = model::count_parameters(plan.model);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    nlohmann::ordered_json row;
    row["rank"] = rank;
    for (const auto& [owner, bytes] : ranks[rank]) row["bytes"][owner] = bytes;
    row["total"] = total(ranks[rank]);
    out["ranks"].push_back(std::move(row));
  }
  out["not_included"] = train::measured_owners(plan);
  std::cout << out.dump(2) << "\n";
}

void run_plan(const PlanOptions& options) {
  const config::RunPlan plan = options.recipe.plan();
  const std::vector<BytesByOwner> ranks = grid::dense_grid(plan.grid).per_rank([&](int rank) {
    const std::unique_ptr<comm::World> world = comm::dry_world(rank, plan.grid.world_size);
    return train::Engine(*world, plan).planned_bytes();
  });
  for (const std::string& warning : plan.warnings()) log::warning(warning);
  if (options.format == "json")
    print_json(plan, ranks);
  else
    print_text(plan, ranks);
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
