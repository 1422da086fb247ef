#pragma once
#include <string>

#include "megalith/config/run_plan.h"
#include "megalith/ops/attention.h"

namespace megalith::train {

/// What one call of the attention's backward pass takes of a rank's GPU only because train.deterministic asks for the
/// same bits every time. 0 where our own attention runs.
Index deterministic_attention_bytes(const config::RunPlan& plan,
                                    const ops::AttentionBuild& build = ops::attention_build());

/// Why a run on GPUs has our own attention, which is slower than the library's: "model.attention_dropout = 0.1: ...",
/// or that the build has no library. Empty where the library's runs, and on CPUs.
std::string own_attention_reason(const config::RunPlan& plan,
                                 const ops::AttentionBuild& build = ops::attention_build());

/// The kernels of the attention of a run on GPUs, "forward cuDNN 9.14.0 eng..., backward megalith", from whose names
/// its last bits follow. Empty on CPUs. Asks the library (ops::attention_way).
std::string attention_kernels(const config::RunPlan& plan);
/// Why the library, which was asked, does not run a pass: "backward: cuDNN 9.10.0: ...". Empty where it does, and where
/// own_attention_reason() says more.
std::string refused_attention(const config::RunPlan& plan);
/// What a run that goes on by other kernels than it was saved with is told: empty where they are the same, and where
/// either is not known.
std::string changed_attention(const std::string& saved, const std::string& here);

}  // namespace megalith::train
