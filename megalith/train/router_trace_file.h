#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/nn/moe/router_decisions.h"

namespace megalith::train {

/// What a file of router decisions is of. The file: a line with these members, then for each step the chosen experts
/// as u16 [layers, tokens, top_k], little-endian, of dropped pairs plus 2^15. It depends on no grid.
struct RouterTraceShape {
  Index layers = 0, experts = 0, top_k = 0, tokens = 0;  ///< MoE layers; tokens of a global batch
  Index seq_len = 0;
  std::string pattern;   ///< a letter for every layer of the model: d or m
  std::string capacity;  ///< "none", or "C:N": an expert takes C of each N tokens
  static RouterTraceShape of(const config::RunPlan& plan);

  Index step_values() const { return layers * tokens * top_k; }
  /// The index of the first decision of these tokens among those of a step.
  std::size_t first_value(const nn::RoutedTokens& of) const {
    return static_cast<std::size_t>((of.moe_layer * tokens + of.first) * top_k);
  }
  std::string text() const;
  bool operator==(const RouterTraceShape&) const = default;
};

inline constexpr std::int32_t kDroppedPair = 1 << 15;

/// The first line of a file whose first step is `first_step`.
std::string router_trace_header(const RouterTraceShape& shape, Index first_step);

/// A file that `train --router-trace` has written, of whatever model.
class RouterTraceFile {
 public:
  /// Errors name it as "`key` = `value`". Throws InputError for a file of another kind and for one that is cut,
  /// IoError.
  RouterTraceFile(io::Fs& fs, const std::string& file, std::string_view key, const std::string& value);

  const RouterTraceShape& shape() const { return shape_; }
  Index first_step() const { return first_step_; }
  Index steps() const { return steps_; }
  /// experts [tokens, K] of a step of the file; ~expert if the pair was dropped. Throws InputError for experts that do
  /// not exist, and if those of a token are not distinct.
  void read(const nn::RoutedTokens& tokens, std::span<std::int32_t> experts) const;

 private:
  std::string where_;  // "moe.replay = FILE: "
  io::MappedFile map_;
  RouterTraceShape shape_;
  Index first_step_ = 0, steps_ = 0;
  std::size_t begin_ = 0;  // of the first step, in bytes
};

}  // namespace megalith::train
