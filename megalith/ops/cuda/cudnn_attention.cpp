#include "megalith/ops/cuda/cudnn_attention.h"

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <source_location>
#include <unordered_map>

#include <cudnn_frontend.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/attention.h"
#include "megalith/ops/cuda/cudnn_versions.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/cuda/gpu_attribute.h"
#include "megalith/tensor/gpu_pretence.h"

namespace megalith::ops::cuda {
namespace {

namespace fe = cudnn_frontend;

void check(cudnnStatus_t status, std::source_location where = std::source_location::current()) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw BackendError(str("[attention:", where.line(), "] cuDNN: ", cudnnGetErrorString(status)));
}
void check(fe::error_t error, std::source_location where = std::source_location::current()) {
  if (error.is_good()) return;
  throw BackendError(str("[attention:", where.line(), "] cuDNN: ", error.get_message()));
}

/// What a graph depends on.
struct Key {
  AttentionPass pass = AttentionPass::forward;
  Index batch = 0, heads = 0, seq_len = 0, head_dim = 0;
  DType dtype = DType::bf16;
  Determinism determinism = Determinism::required;
  auto operator<=>(const Key&) const = default;
};

/// The forward pass is always deterministic.
Key key_of(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  return {.pass = pass,
          .batch = shape.batch,
          .heads = shape.num_heads,
          .seq_len = shape.seq_len,
          .head_dim = shape.head_dim,
          .dtype = shape.dtype,
          .determinism = pass == AttentionPass::forward ? Determinism::required : determinism};
}

/// Names of the tensors of a graph.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLogSumExp, kDout, kDq, kDk, kDv, kLengthsQ, kLengthsK };

/// Scratch: cuDNN's own and, from `lengths_offset` on, a length per sample where the graph has those.
struct BuiltGraph {
  std::shared_ptr<fe::graph::Graph> graph;
  Index lengths_offset = 0, scratch_bytes = 0;
};

using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

/// The tensors of a shape, as cuDNN wants to be told of them: [B, A, S, D] with the strides of the packed layout.
class Tensors {
 public:
  explicit Tensors(const Key& key) : key_(key), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(key.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  fe::graph::Graph& graph() { return *graph_; }

  TensorPtr packed(Uid uid) {  // q, k or v inside qkv [B*S, A*3*D]
    return graph_->tensor(shaped(uid, 3 * key_.head_dim));
  }
  TensorPtr plain(Uid uid) { return graph_->tensor(shaped(uid, key_.head_dim)); }  // [B*S, A*D]
  void name_packed(const TensorPtr& output, Uid uid) const { name(output, shaped(uid, 3 * key_.head_dim)); }
  void name_plain(const TensorPtr& output, Uid uid) const { name(output, shaped(uid, key_.head_dim)); }
  TensorPtr statistics(Uid uid) { return graph_->tensor(statistics_shape(uid)); }  // [B, A, S]
  void name_statistics(const TensorPtr& output, Uid uid) const {
    name(output, statistics_shape(uid));
    output->set_data_type(fe::DataType_t::FLOAT);
  }

  TensorPtr lengths(Uid uid) {  // [B]
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(uid)
                              .set_dim({key_.batch, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }

  BuiltGraph build(cudnnHandle_t handle) {
    check(graph_->validate());
    check(graph_->build_operation_graph(handle));
    check(graph_->create_execution_plans({fe::HeurMode_t::A}));
    check(graph_->check_support(handle));
    check(graph_->build_plans(handle, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    std::int64_t bytes = 0;
    check(graph_->get_workspace_size(bytes));
    const Index offset = round_up(Index{bytes}, 256);
    const bool has_lengths = needs_lengths(cudnnGetVersion(), key_.pass, key_.seq_len);
    return {graph_, offset, has_lengths ? offset + key_.batch * size_of(DType::i32) : Index{bytes}};
  }

 private:
  fe::graph::Tensor_attributes shaped(Uid uid, Index head_stride) const {
    const Index token = key_.heads * head_stride;
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_dim({key_.batch, key_.heads, key_.seq_len, key_.head_dim})
        .set_stride({key_.seq_len * token, head_stride, token, 1});
  }
  fe::graph::Tensor_attributes statistics_shape(Uid uid) const {
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_dim({key_.batch, key_.heads, key_.seq_len, 1})
        .set_stride({key_.heads * key_.seq_len, key_.seq_len, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  static void name(const TensorPtr& output, const fe::graph::Tensor_attributes& as) {
    output->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
  }

  Key key_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

float scale_of(const Key& key) { return 1.0f / std::sqrt(static_cast<float>(key.head_dim)); }

BuiltGraph build_forward(const Key& key, cudnnHandle_t handle) {
  Tensors tensors(key);
  auto options = fe::graph::SDPA_attributes()
                     .set_name("attention")
                     .set_generate_stats(true)
                     .set_causal_mask(true)
                     .set_attn_scale(scale_of(key));
  auto [out, statistics] =
      tensors.graph().sdpa(tensors.packed(kQ), tensors.packed(kK), tensors.packed(kV), std::move(options));
  tensors.name_plain(out, kOut);
  tensors.name_statistics(statistics, kLogSumExp);
  return tensors.build(handle);
}

BuiltGraph build_backward(const Key& key, cudnnHandle_t handle) {
  Tensors tensors(key);
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_causal_mask(true)
                     .set_attn_scale(scale_of(key))
                     .set_deterministic_algorithm(key.determinism == Determinism::required);
  if (needs_lengths(cudnnGetVersion(), key.pass, key.seq_len)) {
    options.set_padding_mask(true).set_seq_len_q(tensors.lengths(kLengthsQ)).set_seq_len_kv(tensors.lengths(kLengthsK));
  }
  auto [dq, dk, dv] =
      tensors.graph().sdpa_backward(tensors.packed(kQ), tensors.packed(kK), tensors.packed(kV), tensors.plain(kOut),
                                    tensors.plain(kDout), tensors.statistics(kLogSumExp), std::move(options));
  tensors.name_packed(dq, kDq);
  tensors.name_packed(dk, kDk);
  tensors.name_packed(dv, kDv);
  return tensors.build(handle);
}

BuiltGraph build(const Key& key, cudnnHandle_t handle) {
  return key.pass == AttentionPass::forward ? build_forward(key, handle) : build_backward(key, handle);
}

class Handle {
 public:
  Handle() { check(cudnnCreate(&handle_)); }
  ~Handle() { cudnnDestroy(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return handle_; }

 private:
  cudnnHandle_t handle_ = nullptr;
};

/// cuDNN of one Exec.
class Cudnn {
 public:
  explicit Cudnn(Exec&) {}

  void run(Stream stream, const Key& key, const Tensor& scratch, std::unordered_map<std::int64_t, void*>& pointers) {
    auto found = graphs_.find(key);
    if (found == graphs_.end()) found = graphs_.emplace(key, build(key, handle_.get())).first;
    const BuiltGraph& built = found->second;
    if (built.scratch_bytes > scratch.bytes()) {
      throw BackendError(str("[attention] cuDNN asks for ", built.scratch_bytes,
                             " bytes of scratch, before it asked for ", scratch.bytes(),
                             "; use train.precision = \"fp32\", which does without cuDNN"));
    }
    if (needs_lengths(cudnnGetVersion(), key.pass, key.seq_len)) {
      std::byte* const lengths = static_cast<std::byte*>(scratch.raw()) + built.lengths_offset;
      megalith::cuda::check_driver(
          MEGALITH_DRIVER(cuMemsetD32Async)(reinterpret_cast<CUdeviceptr>(lengths), static_cast<unsigned>(key.seq_len),
                                            static_cast<std::size_t>(key.batch), megalith::cuda::native(stream)));
      pointers[kLengthsQ] = pointers[kLengthsK] = lengths;
    }
    check(cudnnSetStream(handle_.get(), megalith::cuda::native(stream)));
    check(built.graph->execute(handle_.get(), pointers, scratch.raw()));
  }

 private:
  Handle handle_;
  std::map<Key, BuiltGraph> graphs_;  // gone before the handle
};

std::string version_text(std::size_t version) {  // 91900 is 9.19.0
  return str(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

CudnnAnswer refused(std::string_view why) {
  return {.scratch_bytes = 0, .kernel = "", .refusal = str("cuDNN ", version_text(cudnnGetVersion()), ": ", why)};
}

/// Builds the graph to see what comes of it.
CudnnAnswer answer_to(const Key& key) {
  const int capability = megalith::cuda::gpu_attribute(cudaDevAttrComputeCapabilityMajor);
  const std::string_view fault = fault_of_cudnn(cudnnGetVersion(), capability, key.pass, key.determinism);
  if (!fault.empty()) return refused(fault);
  try {
    const Handle handle;
    const BuiltGraph built = build(key, handle.get());
    std::string plan;
    check(built.graph->get_plan_name(plan));
    return {built.scratch_bytes, str("cuDNN ", version_text(cudnnGetVersion()), ' ', plan), ""};
  } catch (const BackendError& error) {
    static_cast<void>(cudaGetLastError());
    return refused(error.what());
  }
}

/// q, k or v (or their gradients) of the first token and head.
void* part(const Tensor& packed, Index head_dim, int number) {
  return static_cast<std::byte*>(packed.raw()) + number * head_dim * size_of(packed.dtype());
}

}  // namespace

bool has_cudnn() { return true; }

std::string cudnn_version() {
  return str(version_text(cudnnGetVersion()), ", cudnn-frontend ", CUDNN_FRONTEND_MAJOR_VERSION, '.',
             CUDNN_FRONTEND_MINOR_VERSION, '.', CUDNN_FRONTEND_PATCH_VERSION);
}

const CudnnAnswer& ask_cudnn(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  static const CudnnAnswer pretended{.scratch_bytes = 0, .kernel = "", .refusal = "cuDNN: refused for a test"};
  const device::Pretence& pretence = device::pretended();
  if (pass == AttentionPass::forward ? pretence.no_library_forward : pretence.no_library_backward) return pretended;

  static std::mutex mutex;
  static std::map<std::pair<int, Key>, CudnnAnswer> answers;
  std::pair<int, Key> question{0, key_of(pass, shape, determinism)};
  megalith::cuda::check(cudaGetDevice(&question.first));
  {
    const std::lock_guard lock(mutex);
    if (const auto found = answers.find(question); found != answers.end()) return found->second;
  }
  CudnnAnswer answer = answer_to(question.second);  // ranks ask at once, each for its own GPU
  const std::lock_guard lock(mutex);
  return answers.emplace(question, std::move(answer)).first->second;
}

void cudnn_attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch) {
  const Index d = args.out.dim(1) / args.num_heads;
  std::unordered_map<std::int64_t, void*> pointers = {{kQ, part(args.qkv, d, 0)},
                                                      {kK, part(args.qkv, d, 1)},
                                                      {kV, part(args.qkv, d, 2)},
                                                      {kOut, args.out.raw()},
                                                      {kLogSumExp, args.log_sum_exp.raw()}};
  ex.backend<Cudnn>().run(stream, key_of(AttentionPass::forward, shape_of(args), ex.determinism()), scratch, pointers);
}

void cudnn_attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  const Index d = args.out.dim(1) / args.num_heads;
  std::unordered_map<std::int64_t, void*> pointers = {
      {kQ, part(args.qkv, d, 0)},   {kK, part(args.qkv, d, 1)},           {kV, part(args.qkv, d, 2)},
      {kOut, args.out.raw()},       {kLogSumExp, args.log_sum_exp.raw()}, {kDout, args.dout.raw()},
      {kDq, part(args.dqkv, d, 0)}, {kDk, part(args.dqkv, d, 1)},         {kDv, part(args.dqkv, d, 2)}};
  ex.backend<Cudnn>().run(stream, key_of(AttentionPass::backward, shape_of(args), ex.determinism()), scratch, pointers);
}

}  // namespace megalith::ops::cuda
