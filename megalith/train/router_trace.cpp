#include "megalith/train/router_trace.h"

#include <algorithm>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/moe_rules.h"
#include "megalith/io/problem_text.h"
#include "megalith/train/router_trace_file.h"

namespace megalith::train {
namespace {

/// Records the decisions of all ranks of a run in FILE, which is there once the run has ended.
class RouterTraceWriter final : public RouterTrace {
 public:
  RouterTraceWriter(comm::World& world, io::Fs& fs, io::Path file, const RouterTraceShape& shape, Index first_step);
  void end_step() override;
  std::string publish() override;

 private:
  Use use() const override { return Use::record; }
  void take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) override;

  comm::World& world_;
  io::Fs& fs_;
  io::Path file_, unfinished_;
  RouterTraceShape shape_;
  std::vector<std::int32_t> step_;  // 1 + what the file holds; 0: not of this rank
  std::unique_ptr<io::OutputFile> out_;
};

RouterTraceWriter::RouterTraceWriter(comm::World& world, io::Fs& fs, io::Path file, const RouterTraceShape& shape,
                                     Index first_step)
    : world_(world),
      fs_(fs),
      file_(std::move(file)),
      unfinished_(file_.string() + ".unfinished"),
      shape_(shape),
      step_(static_cast<std::size_t>(shape.step_values()), 0) {
  if (world.rank() != 0) return;
  out_ = fs.create(unfinished_);
  out_->write(router_trace_header(shape, first_step));
}

void RouterTraceWriter::take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) {
  std::int32_t* to = step_.data() + shape_.first_value(tokens);
  for (const std::int32_t expert : experts) *to++ = 1 + (expert < 0 ? kDroppedPair + ~expert : expert);
}

void RouterTraceWriter::end_step() {
  Exec host;
  comm::all_reduce(host, world_.all(), Tensor(step_.data(), {shape_.step_values()}, DType::i32), comm::Reduce::sum)
      .wait(host);
  if (world_.rank() == 0) {
    std::vector<std::uint16_t> values(step_.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (step_[i] < 1) throw InternalError(str("[router trace] decision ", i, " of a step was not recorded"));
      values[i] = static_cast<std::uint16_t>(step_[i] - 1);
    }
    out_->write(std::as_bytes(std::span(values)));
  }
  std::fill(step_.begin(), step_.end(), 0);
}

std::string RouterTraceWriter::publish() {
  if (world_.rank() != 0) return "";
  out_->sync();
  out_->close();
  fs_.rename(unfinished_, file_);
  return "wrote the decisions of routers to " + file_.string();
}

/// Repeats the decisions of a file.
class RouterTraceReader final : public RouterTrace {
 public:
  RouterTraceReader(io::Fs& fs, const std::string& file, const RouterTraceShape& shape, Index first_step,
                    Index last_step);

 private:
  Use use() const override { return Use::replay; }
  void take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) override { file_.read(tokens, experts); }

  RouterTraceFile file_;
};

RouterTraceReader::RouterTraceReader(io::Fs& fs, const std::string& file, const RouterTraceShape& shape,
                                     Index first_step, Index last_step)
    : file_(fs, file, "moe.replay", file) {
  if (file_.shape() != shape)
    throw ConfigError(str("moe.replay = ", file, ": has ", file_.shape().text(), "; this run has ", shape.text(),
                          ": use the model, the capacity and train.global_batch of the run that wrote it"));
  const Index first = file_.first_step(), steps = file_.steps();
  if (first_step < first || last_step > first + steps)
    throw ConfigError(str("moe.replay = ", file, ": has steps ", first + 1, " to ", first + steps,
                          "; this run trains steps ", first_step + 1, " to ", last_step));
}

}  // namespace

void require_router_trace(const config::RunPlan& plan, const std::string& file) {
  if (!plan.model.moe.has_experts())
    throw ConfigError(str("--router-trace = ", file, ": the model has no experts (moe.num_experts); leave it away"));
  if (!plan.model.moe.replay.empty())
    throw ConfigError(str("--router-trace = ", file, ": moe.replay = ", plan.model.moe.replay,
                          " already holds these decisions; remove one of the two"));
  if (plan.train.ramp)
    throw ConfigError(str("--router-trace = ", file, ": train.batch_ramp = ", plan.train.ramp->text(),
                          ": a file has steps of one size; leave away one of the two"));
  const bool is_of_layers = plan.graphs.mode == capture::GraphMode::layers;
  if (plan.graphs.mode == capture::GraphMode::iteration || (is_of_layers && config::hold_routers(plan.graphs.scopes)))
    throw ConfigError(str("--router-trace = ", file,
                          ": the host reads decisions in every pass, which it cannot in a graph that holds "
                          "routers; use graphs.mode = layers with graphs.scopes = [\"attn\"], or graphs.mode = none"));
}

std::unique_ptr<RouterTrace> open_router_trace(comm::World& world, io::Fs& fs, const config::RunPlan& plan,
                                               const io::Path& file, Index first_step) {
  if (const std::string& replay = plan.model.moe.replay; !replay.empty()) {
    io::require_file(fs, replay, "moe.replay = " + replay, "; `megalith train --router-trace FILE` writes one");
    return std::make_unique<RouterTraceReader>(fs, replay, RouterTraceShape::of(plan), first_step, plan.train.steps);
  }
  if (file.empty() || !plan.model.moe.has_experts()) return std::make_unique<RouterTrace>();
  return std::make_unique<RouterTraceWriter>(world, fs, file, RouterTraceShape::of(plan), first_step);
}

}  // namespace megalith::train
