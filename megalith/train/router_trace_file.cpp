#include "megalith/train/router_trace_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/reader.h"
#include "megalith/ops/router.h"

namespace megalith::train {
namespace {

constexpr std::string_view kKind = "megalith router trace 2:";

struct Header {
  RouterTraceShape shape;
  Index first_step = 0;
  std::size_t bytes = 0;
};

/// Bounds within which sizes of a step are exact.
bool is_possible(const Header& header) {
  constexpr Index kMaxLayers = 65535, kMaxTokens = Index{1} << 36, kMaxStep = Index{1} << 53;
  const RouterTraceShape& shape = header.shape;
  const auto within = [](Index value, Index max) { return value >= 1 && value <= max; };
  return within(shape.layers, kMaxLayers) && within(shape.experts, ops::kMaxRouterExperts) &&
         within(shape.top_k, shape.experts) && within(shape.tokens, kMaxTokens) &&
         within(shape.seq_len, shape.tokens) && shape.tokens % shape.seq_len == 0 && header.first_step >= 0 &&
         header.first_step <= kMaxStep;
}

/// Where a byte lies that comes after the header. The header is line 1. The rest is binary and has no columns.
std::string place_of(std::size_t offset) { return str("line 2, byte ", offset + 1, " of the file, "); }

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
  return is_whole && is_possible(header) ? std::optional(header) : std::nullopt;
}

}  // namespace

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

std::string RouterTraceShape::text() const {
  return str(layers, " MoE layers (", io::printable(pattern, 40), "), ", experts, " experts, top_k ", top_k, ", ",
             tokens, " tokens a step, seq_len ", seq_len, ", capacity ", io::printable(capacity, 40));
}

std::string router_trace_header(const RouterTraceShape& shape, Index first_step) {
  return str(kKind, " layers ", shape.layers, " experts ", shape.experts, " top_k ", shape.top_k, " tokens ",
             shape.tokens, " seq_len ", shape.seq_len, " pattern ", shape.pattern, " capacity ", shape.capacity,
             " first_step ", first_step, '\n');
}

RouterTraceFile::RouterTraceFile(io::Fs& fs, const std::string& file, std::string_view key, const std::string& value)
    : where_(str(key, " = ", value, ": ")), map_(fs.map(file)) {
  const std::string_view text = map_.text();
  const std::optional<Header> header = parse_header(text);
  if (!header)
    throw InputError(
        str(where_, "line 1, column 1, is not a router trace: `megalith train --router-trace FILE` writes one"));
  shape_ = header->shape;
  begin_ = header->bytes;
  first_step_ = header->first_step;
  const auto step_bytes = static_cast<std::size_t>(shape_.step_values()) * sizeof(std::uint16_t);
  if (const std::size_t rest = (text.size() - begin_) % step_bytes; rest != 0)
    throw InputError(str(where_, place_of(text.size() - rest), "is cut: ", rest, " of the ", step_bytes,
                         " bytes of a step are after its last whole step; copy it again"));
  steps_ = static_cast<Index>((text.size() - begin_) / step_bytes);
}

void RouterTraceFile::read(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) const {
  const std::size_t step = static_cast<std::size_t>((tokens.step - first_step_) * shape_.step_values());
  const std::byte* from = map_.bytes().data() + begin_ + (step + shape_.first_value(tokens)) * sizeof(std::uint16_t);
  const auto top_k = static_cast<std::size_t>(shape_.top_k);
  const auto number = [](std::int32_t expert) { return expert < 0 ? ~expert : expert; };
  // Where the last number that was read lies.
  const auto here = [&] {
    return place_of(static_cast<std::size_t>(from - map_.bytes().data()) - sizeof(std::uint16_t));
  };
  for (std::size_t i = 0; i < experts.size(); ++i) {
    std::int32_t& expert = experts[i];
    std::uint16_t value = 0;
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
    const std::int32_t named = value % kDroppedPair;
    if (named >= shape_.experts)
      throw InputError(str(where_, here(), "step ", tokens.step + 1, ", MoE layer ", tokens.moe_layer, " names expert ",
                           named, ": must be below moe.num_experts = ", shape_.experts, ", the experts of line 1"));
    expert = value < kDroppedPair ? named : ~named;
    const std::span<const std::int32_t> before = experts.subspan(i / top_k * top_k, i % top_k);
    if (std::ranges::any_of(before, [&](std::int32_t other) { return number(other) == named; }))
      throw InputError(str(where_, here(), "step ", tokens.step + 1, ", MoE layer ", tokens.moe_layer, ", token ",
                           tokens.first + static_cast<Index>(i / top_k), " of the batch names expert ", named,
                           " twice: the experts of a token must be distinct"));
  }
}

}  // namespace megalith::train
