#pragma once
#include "megalith/nn/moe/moe_config.h"
#include "megalith/tensor/device.h"

namespace megalith::nn {

/// What ExpertDispatcher::automatic is where ranks reach each other's memory. On GPUs rows are sent until measurements
/// have shown that reading them is faster.
constexpr ExpertDispatcher automatic_dispatcher(Device device) {
  return device == Device::cpu ? ExpertDispatcher::peer : ExpertDispatcher::all_to_all;
}

}  // namespace megalith::nn
