#include "megalith/train/router_trace.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/reader.h"

namespace megalith::train {
namespace {

/// What a file of router decisions is of. The file: a line with these members, then for each step the chosen experts
/// as u16 [layers, tokens, top_k], little-endian, of dropped pairs plus 2^15. It depends on no grid.
struct RouterTraceShape {
  Index layers = 0, experts = 0, top_k = 0, tokens = 0;  ///< MoE layers; tokens of a global batch
  Index seq_len = 0;
  std::string pattern;   ///< a letter for every layer of the model: d or m
  std::string capacity;  ///< "none", or "C:N": an expert takes C of each N tokens
  static RouterTraceShape of(const config::RunPlan& plan);
  Index step_values() const { return layers * tokens * top_k; }
  bool operator==(const RouterTraceShape&) const = default;
};

constexpr std::int32_t kDropped = 1 << 15;
constexpr std::string_view kKind = "megalith router trace 2:";

std::string header(const RouterTraceShape& shape, Index first_step) {
  return str(kKind, " layers ", shape.layers, " experts ", shape.experts, " top_k ", shape.top_k, " tokens ",
             shape.tokens, " seq_len ", shape.seq_len, " pattern ", shape.pattern, " capacity ", shape.capacity,
             " first_step ", first_step, '\n');
}

struct Header {
  RouterTraceShape shape;
  Index first_step = 0;
  std::size_t bytes = 0;
};

/// Nothing for a file of another kind.
std::optional<Header> parse_header(std::string_view text) {
  constexpr std::size_t kLongest = 1 << 17;  // a letter for each layer, of which a model has at most 65,535
  const std::size_t end = text.substr(0, kLongest).find('\n');
  if (end == std::string_view::npos || !text.starts_with(kKind)) return std::nullopt;
  std::istringstream line(std::string(text.substr(kKind.size(), end - kKind.size())));
  Header header;
  header.bytes = end + 1;
  const auto read = [&](const char* name, auto& value) {
    std::string word;
    return static_cast<bool>(line >> word >> value) && word == name;
  };
  RouterTraceShape& shape = header.shape;
  const bool is_whole = read("layers", shape.layers) && read("experts", shape.experts) && read("top_k", shape.top_k) &&
                        read("tokens", shape.tokens) && read("seq_len", shape.seq_len) &&
                        read("pattern", shape.pattern) && read("capacity", shape.capacity) &&
                        read("first_step", header.first_step);
  return is_whole ? std::optional(header) : std::nullopt;
}

std::string text_of(const RouterTraceShape& shape) {
  return str(shape.layers, " MoE layers (", io::printable(shape.pattern, 40), "), ", shape.experts, " experts, top_k ",
             shape.top_k, ", ", shape.tokens, " tokens a step, seq_len ", shape.seq_len, ", capacity ",
             io::printable(shape.capacity, 40));
}

/// The index of the first decision of these tokens among those of a step.
std::size_t first_value(const RouterTraceShape& shape, const nn::RoutedTokens& tokens) {
  return static_cast<std::size_t>((tokens.moe_layer * shape.tokens + tokens.first) * shape.top_k);
}

RouterTraceShape RouterTraceShape::of(const config::RunPlan& plan) {
  const model::ModelConfig& model = plan.model;
  RouterTraceShape shape{.layers = model.num_moe_layers(),
                         .experts = model.moe.num_experts,
                         .top_k = model.moe.top_k,
                         .tokens = plan.train.global_batch * model.seq_len,
                         .seq_len = model.seq_len,
                         .pattern = {},
                         .capacity = "none"};
  for (Index layer = 0; layer < model.num_layers; ++layer) shape.pattern += model.moe.is_moe_layer(layer) ? 'm' : 'd';
  if (model.moe.has_capacity())
    shape.capacity = str(model.moe.capacity_of(model.capacity_run()), ':', model.capacity_run());
  return shape;
}

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
  out_->write(header(shape, first_step));
}

void RouterTraceWriter::take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) {
  std::int32_t* to = step_.data() + first_value(shape_, tokens);
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
  void take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) override;

  io::MappedFile map_;
  RouterTraceShape shape_;
  Index first_step_ = 0;
  std::size_t begin_ = 0;  // of the first step, in bytes
};

RouterTraceReader::RouterTraceReader(io::Fs& fs, const std::string& file, const RouterTraceShape& shape,
                                     Index first_step, Index last_step)
    : map_(fs.map(file)), shape_(shape) {
  const std::string_view text = map_.text();
  const std::optional<Header> header = parse_header(text);
  if (!header)
    throw ConfigError(
        str("moe.replay = ", file, ": is not a router trace: `megalith train --router-trace FILE` writes one"));
  if (header->shape != shape)
    throw ConfigError(str("moe.replay = ", file, ": has ", text_of(header->shape), "; this run has ", text_of(shape),
                          ": use the model, the capacity and train.global_batch of the run that wrote it"));
  begin_ = header->bytes;
  first_step_ = header->first_step;
  const auto step_bytes = static_cast<std::size_t>(shape.step_values()) * sizeof(std::uint16_t);
  if (const std::size_t rest = (text.size() - begin_) % step_bytes; rest != 0)
    throw InputError(str("moe.replay = ", file, ": is cut: ", rest, " of the ", step_bytes,
                         " bytes of a step are after its last whole step; copy it again"));
  const auto steps = static_cast<Index>((text.size() - begin_) / step_bytes);
  if (first_step < first_step_ || last_step > first_step_ + steps)
    throw ConfigError(str("moe.replay = ", file, ": has steps ", first_step_ + 1, " to ", first_step_ + steps,
                          "; this run trains steps ", first_step + 1, " to ", last_step));
}

void RouterTraceReader::take(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) {
  const std::size_t step = static_cast<std::size_t>((tokens.step - first_step_) * shape_.step_values());
  const std::byte* from = map_.bytes().data() + begin_ + (step + first_value(shape_, tokens)) * sizeof(std::uint16_t);
  const auto top_k = static_cast<std::size_t>(shape_.top_k);
  const auto number = [](std::int32_t expert) { return expert < 0 ? ~expert : expert; };
  for (std::size_t i = 0; i < experts.size(); ++i) {
    std::int32_t& expert = experts[i];
    std::uint16_t value = 0;
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
    const std::int32_t named = value % kDropped;
    if (named >= shape_.experts)
      throw InputError(str("moe.replay: step ", tokens.step + 1, ", MoE layer ", tokens.moe_layer, " names expert ",
                           named, ": must be below moe.num_experts = ", shape_.experts));
    expert = value < kDropped ? named : ~named;
    const std::span<const std::int32_t> before = experts.subspan(i / top_k * top_k, i % top_k);
    if (std::ranges::any_of(before, [&](std::int32_t other) { return number(other) == named; }))
      throw InputError(str("moe.replay: step ", tokens.step + 1, ", MoE layer ", tokens.moe_layer, ", token ",
                           tokens.first + static_cast<Index>(i / top_k), " of the batch names expert ", named,
                           " twice: the experts of a token must be distinct"));
  }
}

}  // namespace

void require_router_trace(const config::RunPlan& plan, const std::string& file) {
  if (!plan.model.moe.has_experts())
    throw ConfigError(str("--router-trace = ", file, ": the model has no experts (moe.num_experts); leave it away"));
  if (!plan.model.moe.replay.empty())
    throw ConfigError(str("--router-trace = ", file, ": moe.replay = ", plan.model.moe.replay,
                          " already holds these decisions; remove one of the two"));
  if (plan.graphs.mode == capture::GraphMode::iteration)
    throw ConfigError(str("--router-trace = ", file,
                          ": the host reads decisions in every pass, which a graph of a step "
                          "cannot hold; use graphs.mode = layers or none"));
}

std::unique_ptr<RouterTrace> open_router_trace(comm::World& world, io::Fs& fs, const config::RunPlan& plan,
                                               const io::Path& file, Index first_step) {
  if (const std::string& replay = plan.model.moe.replay; !replay.empty())
    return std::make_unique<RouterTraceReader>(fs, replay, RouterTraceShape::of(plan), first_step, plan.train.steps);
  if (file.empty() || !plan.model.moe.has_experts()) return std::make_unique<RouterTrace>();
  return std::make_unique<RouterTraceWriter>(world, fs, file, RouterTraceShape::of(plan), first_step);
}

}  // namespace megalith::train
