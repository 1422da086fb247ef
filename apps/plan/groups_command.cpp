#include <cstdio>
#include <memory>
#include <string>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/report/groups_report.h"

#include "apps/program/command.h"

namespace megalith::apps {
namespace {

struct GroupsArguments {
  GroupsRequest request;
  std::string format = "text";
};

void print_groups(const GroupsRequest& request) {
  const GroupsReport report = groups_report(request);
  for (const std::string& warning : report.warnings) log::warning(warning);
  std::fwrite(report.output.data(), 1, report.output.size(), stdout);  // main checks that it could be written
}

}  // namespace

void add_groups(CLI::App& program) {
  const auto arguments = std::make_shared<GroupsArguments>();
  GroupsRequest& request = arguments->request;
  grid::ParallelSizes& sizes = request.sizes;
  CLI::App* command = program.add_subcommand(
      "groups", "Print the tensor, pipeline, data, context and expert parallel groups of given sizes; needs no GPU");
  command->add_option("--world-size", sizes.world_size, "Number of ranks")->required();
  command->add_option("--tp", sizes.tp, "Tensor parallel ranks of the dense layers")->capture_default_str();
  command->add_option("--cp", sizes.cp, "Context parallel ranks")->capture_default_str();
  command->add_option("--dp", sizes.dp, "Data parallel ranks: a check only, they follow from the other sizes");
  command->add_option("--pp", sizes.pp, "Pipeline stages")->capture_default_str();
  command->add_option("--etp", sizes.etp, "Tensor parallel ranks of one expert (default: tp)");
  command->add_option("--ep", sizes.ep, "Expert parallel ranks")->capture_default_str();
  command->add_option("--edp", sizes.edp, "Data parallel ranks of the experts: a check only");
  command->add_option("--vpp", sizes.vpp, "Model chunks per pipeline rank");
  command->add_option("--split-rank", sizes.split_rank, "First decoder stage of an encoder-decoder pipeline");
  command->add_option("--order", sizes.order, "Axes from the fastest-varying to the slowest")->capture_default_str();
  command->add_option("--format", arguments->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}).description(""))
      ->capture_default_str();
  command->add_option("--ranks-per-node", request.ranks_per_node,
                      "Also count the groups that span nodes of so many ranks");
  command->add_option("--rank", request.rank, "Print this rank's coordinates, groups and neighbours only");
  command->callback([arguments] {
    constexpr int kMaxRanks = 1 << 24;
    if (arguments->request.sizes.world_size > kMaxRanks) {
      throw ConfigError(str("--world-size = ", arguments->request.sizes.world_size, ": must be at most ", kMaxRanks));
    }
    if (arguments->format == "json") arguments->request.format = GroupsFormat::json;
    print_groups(arguments->request);
  });
}

}  // namespace megalith::apps
