#pragma once
#include <cstdint>
#include <span>

#include "megalith/base/types.h"

namespace megalith::nn {

/// Which decisions: those of consecutive tokens in one MoE layer and step.
struct DecisionsPlace {
  Index step = 0;       ///< counted from 0
  Index moe_layer = 0;  ///< among the MoE layers of the model
  Index token = 0;      ///< number of the first token in the step's global batch
};

/// Decisions of routers on the host: a record of them, or those that are repeated. Training passes only. The host waits
/// for the device in each MoE layer.
class RouterDecisions {
 public:
  enum class Use : std::uint8_t { record, replay };
  virtual ~RouterDecisions() = default;
  virtual Use use() const = 0;
  /// experts [tokens, K], token after token: read where they are recorded, written where they are replayed. An expert
  /// whose pair was dropped is ~expert.
  virtual void take(const DecisionsPlace& place, std::span<std::int32_t> experts) = 0;
};

}  // namespace megalith::nn
