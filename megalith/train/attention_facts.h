#pragma once
#include <string>

#include "megalith/config/run_plan.h"

namespace megalith::train {

/// What one call of the attention's backward pass takes of a rank's GPU only because train.deterministic asks for the
/// same bits every time.
Index deterministic_attention_bytes(const config::RunPlan& plan);

/// Why a run on GPUs has our own attention, which is slower than the library's: "model.attention_dropout = 0.1: ...".
/// Empty where the library's runs, and on CPUs.
std::string own_attention_reason(const config::RunPlan& plan);

}  // namespace megalith::train
