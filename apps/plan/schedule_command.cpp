#include <cstdio>
#include <memory>
#include <string>

#include "megalith/report/schedule_report.h"

#include "apps/program/command.h"

namespace megalith::apps {
namespace {

struct ScheduleArguments {
  ScheduleRequest request;
  std::string format = "text";
  bool forward_only = false;
  bool full = false;
};

void print_schedule(const ScheduleRequest& request) {
  const std::string text = schedule_report(request);
  std::fwrite(text.data(), 1, text.size(), stdout);  // main checks that it could be written
}

}  // namespace

void add_schedule(CLI::App& program) {
  const auto arguments = std::make_shared<ScheduleArguments>();
  ScheduleRequest& request = arguments->request;
  pipeline::ScheduleShape& shape = request.shape;
  CLI::App* command = program.add_subcommand(
      "schedule", "Print the pipeline schedule of given sizes: what each stage does when, its bubble and its buffers");
  command->add_option("--pp", shape.num_stages, "Pipeline stages")->capture_default_str();
  command->add_option("--vpp", shape.num_chunks, "Model chunks per pipeline stage")->capture_default_str();
  command->add_option("--microbatches", shape.num_microbatches, "Microbatches of a step")->required();
  command->add_option("--group-size", shape.group_size,
                      "Microbatches that run back to back on a chunk (default: pp; no effect when vpp is 1)");
  command->add_flag("--forward-only", arguments->forward_only, "Evaluation instead of training");
  command->add_option("--format", arguments->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}).description(""))
      ->capture_default_str();
  command->add_option("--width", request.width, "Characters a line of text")->check(at_least(1))->capture_default_str();
  command->add_flag("--full", arguments->full, "Draw all of a long timeline, not its ends only");
  command->callback([arguments] {
    ScheduleRequest& wanted = arguments->request;
    if (arguments->format == "json") wanted.format = ScheduleFormat::json;
    if (arguments->forward_only) wanted.shape.mode = pipeline::ScheduleMode::forward_only;
    if (arguments->full) wanted.extent = TimelineExtent::full;
    print_schedule(wanted);
  });
}

}  // namespace megalith::apps
