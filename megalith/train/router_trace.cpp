#include "megalith/train/router_trace.h"

#include <cstdio>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::train {
namespace {

constexpr std::int32_t kDropped = 1 << 15;
constexpr const char* kHeader =
    "megalith router trace 1: layers %lld experts %lld top_k %lld tokens %lld first_step %lld\n";

std::string header(const RouterTraceShape& shape, Index first_step) {
  char text[192];
  std::snprintf(text, sizeof text, kHeader, static_cast<long long>(shape.layers), static_cast<long long>(shape.experts),
                static_cast<long long>(shape.top_k), static_cast<long long>(shape.tokens),
                static_cast<long long>(first_step));
  return text;
}

std::string text_of(const RouterTraceShape& shape) {
  return str(shape.layers, " MoE layers, ", shape.experts, " experts, top_k ", shape.top_k, ", ", shape.tokens,
             " tokens a step");
}

/// The index of the first decision of a place among those of a step.
std::size_t first_value(const RouterTraceShape& shape, const nn::DecisionsPlace& place) {
  return static_cast<std::size_t>((place.moe_layer * shape.tokens + place.token) * shape.top_k);
}

}  // namespace

RouterTraceShape RouterTraceShape::of(const config::RunPlan& plan) {
  return {plan.model.num_moe_layers(), plan.model.moe.num_experts, plan.model.moe.top_k,
          plan.train.global_batch * plan.model.seq_len};
}

void require_router_trace(const config::RunPlan& plan, const std::string& file) {
  if (!plan.model.moe.has_experts())
    throw ConfigError(str("--router-trace = ", file, ": the model has no experts (moe.num_experts); leave it away"));
  if (!plan.model.moe.replay.empty())
    throw ConfigError(str("--router-trace = ", file, ": moe.replay = ", plan.model.moe.replay,
                          " already holds these decisions; remove one of the two"));
}

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
  out_->write(header(shape, first_step));
}

void RouterTraceWriter::take(const nn::DecisionsPlace& place, std::span<std::int32_t> experts) {
  std::int32_t* to = step_.data() + first_value(shape_, place);
  for (const std::int32_t expert : experts) *to++ = 1 + (expert < 0 ? kDropped + ~expert : expert);
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

void RouterTraceWriter::publish() {
  if (world_.rank() != 0) return;
  out_->sync();
  out_->close();
  fs_.rename(unfinished_, file_);
}

RouterTraceReader::RouterTraceReader(io::Fs& fs, const std::string& file, const RouterTraceShape& shape,
                                     Index first_step, Index last_step)
    : map_(fs.map(file)), shape_(shape) {
  const std::string_view text = map_.text();
  const std::size_t end = text.substr(0, 192).find('\n');
  long long layers = 0, experts = 0, top_k = 0, tokens = 0, first = 0;
  const std::string line(text.substr(0, end == std::string_view::npos ? 0 : end + 1));
  if (std::sscanf(line.c_str(), kHeader, &layers, &experts, &top_k, &tokens, &first) != 5)
    throw ConfigError(
        str("moe.replay = ", file, ": is not a router trace: `megalith train --router-trace FILE` writes one"));
  const RouterTraceShape there{layers, experts, top_k, tokens};
  if (there != shape)
    throw ConfigError(str("moe.replay = ", file, ": has ", text_of(there), "; this run has ", text_of(shape),
                          ": use the model and train.global_batch of the run that wrote it"));
  begin_ = end + 1;
  first_step_ = first;
  const auto step_bytes = static_cast<std::size_t>(shape.step_values()) * sizeof(std::uint16_t);
  const auto steps = static_cast<Index>((text.size() - begin_) / step_bytes);
  if (first_step < first_step_ || last_step > first_step_ + steps)
    throw ConfigError(str("moe.replay = ", file, ": has steps ", first_step_ + 1, " to ", first_step_ + steps,
                          "; this run trains steps ", first_step + 1, " to ", last_step));
}

void RouterTraceReader::take(const nn::DecisionsPlace& place, std::span<std::int32_t> experts) {
  const std::size_t step = static_cast<std::size_t>((place.step - first_step_) * shape_.step_values());
  const std::byte* from = map_.bytes().data() + begin_ + (step + first_value(shape_, place)) * sizeof(std::uint16_t);
  for (std::int32_t& expert : experts) {
    std::uint16_t value = 0;
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
    const std::int32_t named = value % kDropped;
    if (named >= shape_.experts)
      throw InputError(str("moe.replay: step ", place.step + 1, ", MoE layer ", place.moe_layer, " names expert ",
                           named, ": must be below moe.num_experts = ", shape_.experts));
    expert = value < kDropped ? named : ~named;
  }
}

}  // namespace megalith::train
