#include "megalith/train/attention_facts.h"

#include "megalith/base/str.h"

namespace megalith::train {
namespace {

constexpr ops::AttentionBuild kWithCudnn = {.has_cuda = true, .has_cudnn = true};

ops::AttentionShape shape_of(const config::RunPlan& plan, const ops::AttentionBuild& build = ops::attention_build()) {
  ops::AttentionShape shape{.dtype = plan.train.policy().compute,
                            .batch = plan.train.micro_batch,
                            .seq_len = plan.model.seq_len,
                            .num_heads = plan.model.num_heads / plan.grid.tp,
                            .head_dim = plan.model.head_width(),
                            .dropout = plan.model.attention_dropout,
                            .mask = plan.model.attention_mask(),
                            .num_kv_heads = plan.model.kv_heads() / plan.grid.tp,
                            .lengths = plan.model.lengths,
                            .documents = plan.model.documents};
  if (plan.model.has_rope()) shape.order = ops::attended_order(plan.device, shape, build);
  return shape;
}

ops::AttentionWay way_of(const config::RunPlan& plan, ops::AttentionPass pass) {
  return ops::attention_way(pass, shape_of(plan), plan.train.determinism());
}

}  // namespace

Index deterministic_attention_bytes(const config::RunPlan& plan, const ops::AttentionBuild& build) {
  if (plan.device != Device::cuda || !plan.train.deterministic) return 0;
  return ops::deterministic_attention_bytes(shape_of(plan, build), build);
}

std::string own_attention_reason(const config::RunPlan& plan, const ops::AttentionBuild& build) {
  const ops::AttentionShape shape = shape_of(plan, build);
  if (plan.device != Device::cuda || ops::is_for_attention_library(shape, build)) return "";
  if (ops::is_for_attention_library(shape, kWithCudnn)) {
    return "this build has no cuDNN: install cuDNN 9 and the cudnn-frontend headers (scripts/install fetches the "
           "latter), then configure and build again";
  }
  if (shape.dtype == DType::f32) return "train.precision = fp32: the library's kernels are for bf16 and fp16";
  if (shape.dropout > 0)
    return str("model.attention_dropout = ", shape.dropout, ": the library's random numbers depend on the grid");
  if (shape.documents == ops::DocumentMask::given)
    return str(plan.data.format == data::DataFormat::chat ? "data.chat_packing = true"
                                                          : "data.attend_across_documents = false",
               ": the library's kernels know no documents in a sample");
  if (shape.seq_len == 1) return "model.seq_len = 1: the library's kernels are for two tokens or more";
  return str("heads of ", shape.head_dim, ": the library's kernels are for multiples of 8 up to 256");
}

std::string attention_kernels(const config::RunPlan& plan) {
  if (plan.device != Device::cuda) return "";
  return str("forward ", way_of(plan, ops::AttentionPass::forward).kernel, ", backward ",
             way_of(plan, ops::AttentionPass::backward).kernel);
}

std::string refused_attention(const config::RunPlan& plan) {
  if (plan.device != Device::cuda) return "";
  std::string text;
  const auto add = [&](std::string_view name, ops::AttentionPass pass) {
    const std::string refusal = way_of(plan, pass).refusal;
    if (!refusal.empty()) text += str(text.empty() ? "" : "; ", name, refusal);
  };
  add("forward: ", ops::AttentionPass::forward);
  add("backward: ", ops::AttentionPass::backward);
  return text;
}

std::string changed_attention(const std::string& saved, const std::string& here) {
  if (saved.empty() || here.empty() || saved == here) return "";
  return str("attention runs by ", here, ": the checkpoint was trained by ", saved,
             "; results may differ in the last bits from an uninterrupted run");
}

}  // namespace megalith::train
