#include "megalith/report/schedule_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/base/text_table.h"
#include "megalith/pipeline/simulate.h"
#include "megalith/pipeline/static_slots.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;
using pipeline::Act;
using pipeline::Action;
using pipeline::Flow;
using pipeline::PerFlow;
using pipeline::ScheduleKind;
using pipeline::ScheduleMode;
using pipeline::ScheduleShape;
using pipeline::Simulation;
using pipeline::StageResult;

constexpr Index kMaxWork = Index{1} << 18;
constexpr int kForwardCost = 1, kBackwardCost = 2;  // of a microbatch on a stage, as simulate() has them

void require_printable(const ScheduleShape& shape) {
  Problems problems;
  check_shape(shape, problems);
  if (problems.empty()) {
    const Index work = Index{total_work(shape)} * shape.num_stages;
    problems.require(work <= kMaxWork, "parallel.pp * chunks * num_microbatches", work,
                     str("must be at most ", kMaxWork,
                         " to be printed; a schedule repeats itself, so try fewer "
                         "microbatches"));
  }
  problems.throw_if_any("schedule (--pp is parallel.pp, --vpp parallel.chunks, --group-size parallel.group_size)");
}

/// In units of one forward of one chunk, in which every time is a whole number.
Simulation simulate_in_units(const ScheduleShape& shape) {
  const double chunks = shape.num_chunks;
  return simulate(shape, {.forward = kForwardCost * chunks, .backward = kBackwardCost * chunks});
}

int ideal_time(const ScheduleShape& shape) {
  return shape.num_microbatches * (kForwardCost + (shape.mode == ScheduleMode::training ? kBackwardCost : 0));
}

/// "F3.1": forward of microbatch 3 on chunk 1.
enum class ChunkLabel { always, when_several };
std::string label(const ScheduleShape& shape, const Action& action, ChunkLabel chunks) {
  std::string text = str(action.act == Act::forward ? "F" : "B", action.microbatch);
  if (chunks == ChunkLabel::always || shape.num_chunks > 1) text += str(".", action.chunk);
  return text;
}

// ---- JSON -----------------------------------------------------------------------------------------------------------

ordered_json stage_json(const ScheduleShape& shape, int stage) {
  const pipeline::Schedule schedule = compute_schedule(shape, stage);
  const int total = total_work(shape), warmup = warmup_count(shape, stage);
  ordered_json places = ordered_json::array(), sequence = ordered_json::array();
  ordered_json forwards = ordered_json::array(), backwards = ordered_json::array();
  for (int chunk = 0; chunk < shape.num_chunks; ++chunk) places.push_back(global_stage(shape, stage, chunk));
  for (const Action& action : schedule) {
    sequence.push_back(label(shape, action, ChunkLabel::always));
    (action.act == Act::forward ? forwards : backwards).push_back({action.microbatch, action.chunk});
  }
  // One captured layer in each chunk, all alike.
  const std::vector<int> capture = capture_order(shape, stage);
  const std::vector<std::vector<int>> one_layer(static_cast<std::size_t>(shape.num_chunks), std::vector<int>{0});
  const pipeline::StaticSlots slots = pipeline::assign_static_slots(capture, one_layer);
  ordered_json slot_of_forward = ordered_json::array();
  for (const std::vector<int>& forward : slots.slot) slot_of_forward.push_back(forward.front());
  const int captured = captured_microbatches(shape);
  const bool training = shape.mode == ScheduleMode::training;
  return {{"rank", stage},
          {"chunk_global_stage", std::move(places)},
          {"warmup", warmup},
          {"steady_pairs", total - warmup},
          {"cooldown", training ? warmup : 0},
          {"all_in_warmup", warmup == total},
          {"peak_in_flight", peak_in_flight(shape, stage)},
          {"order", signed_order(schedule)},
          {"sequence", std::move(sequence)},
          {"backward_sequence", std::move(backwards)},
          {"forward_sequence", std::move(forwards)},
          {"captured_microbatches", captured},
          {"capture_order", capture},
          {"graphs_per_captured_layer", 2 * captured},
          {"static_input_slot_of_forward", std::move(slot_of_forward)},
          {"static_input_slots", slots.signature.size()}};
}

std::string json_report(const ScheduleShape& shape) {
  ordered_json table = ordered_json::array(), microbatches = ordered_json::array(), chunks = ordered_json::array();
  ordered_json forwards = ordered_json::array(), backwards = ordered_json::array();
  for (const pipeline::TableRow& row : schedule_table(shape)) {
    table.push_back({row.microbatch, row.chunk});
    microbatches.push_back(row.microbatch);
    chunks.push_back(row.chunk);
    forwards.push_back(row.chunk + 1);
    if (shape.mode == ScheduleMode::training) backwards.push_back(row.chunk - shape.num_chunks);
  }
  ordered_json stages = ordered_json::array();
  for (int stage = 0; stage < shape.num_stages; ++stage) stages.push_back(stage_json(shape, stage));
  const ordered_json makespan{{"forward_cost_per_stage", kForwardCost},
                              {"backward_cost_per_stage", shape.mode == ScheduleMode::training ? kBackwardCost : 0},
                              {"ideal", ideal_time(shape)},
                              {"total", simulate_in_units(shape).makespan / shape.num_chunks}};
  const ordered_json report{{"pp", shape.num_stages},
                            {"vpp", shape.num_chunks},
                            {"microbatches", shape.num_microbatches},
                            {"group_size", group_size(shape)},
                            {"kind", name(kind_of(shape))},
                            {"total_virtual_microbatches", total_work(shape)},
                            {"schedule_table", std::move(table)},
                            {"microbatch_id_table", std::move(microbatches)},
                            {"model_chunk_id_table", std::move(chunks)},
                            {"forward_order", std::move(forwards)},
                            {"backward_order", std::move(backwards)},
                            {"makespan", makespan},
                            {"ranks", std::move(stages)}};
  return report.dump() + "\n";
}

// ---- text -----------------------------------------------------------------------------------------------------------

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string count(int n, const char* one, const char* many) { return str(n, " ", n == 1 ? one : many); }

std::string title(const ScheduleShape& shape) {
  switch (kind_of(shape)) {
    case ScheduleKind::no_pipelining:
      return "No pipelining";
    case ScheduleKind::one_f_one_b:
      return "1F1B";
    case ScheduleKind::interleaved_1f1b:
      return "Interleaved 1F1B";
    case ScheduleKind::forward_only:
      return "Forward only";
  }
  return "";
}

std::string header(const ScheduleShape& shape, const Simulation& simulation) {
  std::string text = str(title(shape), ": ", count(shape.num_stages, "stage", "stages"));
  if (shape.num_chunks > 1) text += str(" of ", shape.num_chunks, " chunks");
  text += str(", ", count(shape.num_microbatches, "microbatch", "microbatches"));
  if (shape.num_chunks > 1) text += str(" in groups of ", group_size(shape));
  const double total = simulation.makespan / shape.num_chunks, ideal = ideal_time(shape);
  text += str("\nTotal time ", number(total), ", ideal ", number(ideal), ": every stage is idle for ",
              number(std::round(1000 * (total - ideal) / total) / 10), " % of the step (the bubble)\n");
  text += shape.mode == ScheduleMode::training
              ? "A microbatch takes 1 forward and 2 backward on a stage; communication is free.\n"
              : "A microbatch takes 1 on a stage; communication is free.\n";
  return text;
}

std::string both_flows(const PerFlow& flows) { return joined({flows[Flow::activation], flows[Flow::gradient]}); }

std::string stage_table(const ScheduleShape& shape, const Simulation& simulation) {
  const int total = total_work(shape);
  std::vector<std::vector<std::string>> rows{{"stage", "part of the model", "warm-up", "pairs", "cool-down",
                                              "in flight", "idle", "slots", "receive buffers", "send buffers",
                                              "send queue"}};
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    const StageResult& result = simulation.stages[static_cast<std::size_t>(stage)];
    const int warmup = warmup_count(shape, stage);
    std::string places;
    for (int chunk = 0; chunk < shape.num_chunks; ++chunk) {
      places += str(chunk == 0 ? "" : " ", global_stage(shape, stage, chunk));
    }
    rows.push_back(
        {str(stage), places, str(warmup), str(total - warmup), str(shape.mode == ScheduleMode::training ? warmup : 0),
         str(result.peak_in_flight), number(result.idle / shape.num_chunks), joined(result.num_slots),
         both_flows(result.receive_buffers), both_flows(result.send_buffers), both_flows(result.queue_depth)});
  }
  return text_table(rows) +
         str("In flight: most ", shape.num_chunks > 1 ? "chunks of " : "", "microbatches whose activations are kept. ",
             shape.num_chunks > 1 ? "Slots: one number a chunk. " : "", "Buffers, queue: activations + gradients.\n");
}

/// All stages in time: a row a stage, a column a unit of time.
class Timeline {
 public:
  Timeline(const ScheduleRequest& request, const Simulation& simulation)
      : shape_(request.shape), simulation_(simulation), extent_(request.extent) {
    columns_ = static_cast<int>(std::lround(simulation.makespan));
    const Action longest{Act::forward, shape_.num_chunks - 1, shape_.num_microbatches - 1};
    cell_ = static_cast<int>(label(shape_, longest, ChunkLabel::when_several).size()) + 1;
    margin_ = static_cast<int>(str(shape_.num_stages - 1).size());
    per_block_ = std::max(1, (request.width - margin_ - 3) / cell_);
    for (int stage = 0; stage < shape_.num_stages; ++stage) rows_.push_back(row(stage));
  }

  std::string draw() const {
    std::string text =
        str("\nF", shape_.num_chunks > 1 ? "<microbatch>.<chunk>" : "<microbatch>", " forward",
            shape_.mode == ScheduleMode::training ? ", B backward" : "", ", - goes on, . idle; a column is ",
            shape_.num_chunks > 1 ? str("1/", shape_.num_chunks) : "1", " of time\n");
    const int blocks = static_cast<int>(ceil_div(columns_, per_block_));
    const bool cut = extent_ == TimelineExtent::ends && blocks > 2 * kEndBlocks + 1;
    for (int block = 0; block < blocks; ++block) {
      if (cut && block == kEndBlocks) {
        const int end = blocks - kEndBlocks;
        text +=
            str("\n(time ", time(block * per_block_), " to ", time(end * per_block_), " left out; --full draws it)\n");
        block = end;
      }
      text += draw_block(block * per_block_);
    }
    return text;
  }

 private:
  static constexpr int kEndBlocks = 3;  // drawn of each end of a timeline that is cut

  std::string time(int column) const { return number(static_cast<double>(column) / shape_.num_chunks); }

  std::string row(int stage) const {
    std::string text;
    for (int i = 0; i < columns_; ++i) text += "." + std::string(static_cast<std::size_t>(cell_ - 1), ' ');
    for (const pipeline::Span& span : simulation_.stages[static_cast<std::size_t>(stage)].timeline) {
      const auto begin = static_cast<std::size_t>(std::lround(span.start) * cell_);
      const auto end = static_cast<std::size_t>(std::lround(span.end) * cell_);
      std::string mark = label(shape_, span.action, ChunkLabel::when_several);
      mark.resize(static_cast<std::size_t>(cell_), ' ');
      if (end - begin > mark.size()) mark.resize(end - begin - 1, '-');
      mark.resize(end - begin, ' ');
      text.replace(begin, mark.size(), mark);
    }
    return text;
  }

  std::string draw_block(int first) const {
    const int end = std::min(columns_, first + per_block_);
    std::string text = str("\ntime ", time(first), " to ", time(end), "\n");
    for (int stage = 0; stage < shape_.num_stages; ++stage) {
      const std::string number = str(stage);
      std::string cells = rows_[static_cast<std::size_t>(stage)].substr(
          static_cast<std::size_t>(first * cell_), static_cast<std::size_t>((end - first) * cell_));
      cells.erase(cells.find_last_not_of(' ') + 1);
      text += std::string(static_cast<std::size_t>(margin_) - number.size(), ' ') + number + " | " + cells + "\n";
    }
    return text;
  }

  ScheduleShape shape_;
  const Simulation& simulation_;
  TimelineExtent extent_;
  int columns_ = 0, cell_ = 0, margin_ = 0, per_block_ = 0;  // cell_: characters a column
  std::vector<std::string> rows_;
};

}  // namespace

std::string schedule_report(const ScheduleRequest& request) {
  require_printable(request.shape);
  if (request.format == ScheduleFormat::json) return json_report(request.shape);
  const Simulation simulation = simulate_in_units(request.shape);
  return header(request.shape, simulation) + "\n" + stage_table(request.shape, simulation) +
         Timeline(request, simulation).draw();
}

}  // namespace megalith::apps
