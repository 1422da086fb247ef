#pragma once
#include <string>

#include "megalith/config/run_plan.h"
#include "megalith/ops/attention.h"

namespace megalith::train {

/// Memory of a rank's GPU that one call of attention's backward pass takes only because train.deterministic requires
/// the same bits every time. 0 if our own attention runs.
Index deterministic_attention_bytes(const config::RunPlan& plan,
                                    const ops::AttentionBuild& build = ops::attention_build());

/// The reason why a run on GPUs uses our own attention: "model.attention_dropout = 0.1: ...", or that the build has no
/// library. Empty if the library's runs, and on CPUs.
std::string own_attention_reason(const config::RunPlan& plan,
                                 const ops::AttentionBuild& build = ops::attention_build());

/// The attention kernels of a run on GPUs, "forward cuDNN 9.14.0 eng..., backward megalith". The last bits of attention
/// depend on them. Empty on CPUs. Queries the library (ops::attention_way).
std::string attention_kernels(const config::RunPlan& plan);
/// The reason why the library refused a pass: "backward: cuDNN 9.10.0: ...". Empty if it runs the pass, or if
/// own_attention_reason() has the reason.
std::string refused_attention(const config::RunPlan& plan);
/// The warning for a run that continues with other kernels than it was saved with. Empty if they are the same, or if
/// one of them is unknown.
std::string changed_attention(const std::string& saved, const std::string& here);

}  // namespace megalith::train
