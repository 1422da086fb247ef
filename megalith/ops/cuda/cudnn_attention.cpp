#include "megalith/ops/cuda/cudnn_attention.h"

#include <cmath>
#include <map>
#include <memory>
#include <source_location>
#include <unordered_map>

#include <cudnn_frontend.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/tensor/cuda/check.h"

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
  Index batch = 0, heads = 0, seq_len = 0, head_dim = 0;
  DType dtype = DType::bf16;
  Determinism determinism = Determinism::required;
  auto operator<=>(const Key&) const = default;
};

template <class Args>
Key key_of(const Args& args, Determinism determinism) {
  return {args.batch, args.num_heads, args.seq_len, args.out.dim(1) / args.num_heads, args.qkv.dtype(), determinism};
}

/// Names of the tensors of a graph.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLogSumExp, kDout, kDq, kDk, kDv };

struct BuiltGraph {
  std::shared_ptr<fe::graph::Graph> graph;
  std::int64_t scratch_bytes = 0;
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

  BuiltGraph build(cudnnHandle_t handle) {
    check(graph_->validate());
    check(graph_->build_operation_graph(handle));
    check(graph_->create_execution_plans({fe::HeurMode_t::A}));
    check(graph_->check_support(handle));
    check(graph_->build_plans(handle, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
    BuiltGraph built{graph_, 0};
    check(graph_->get_workspace_size(built.scratch_bytes));
    return built;
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
  auto [dq, dk, dv] =
      tensors.graph().sdpa_backward(tensors.packed(kQ), tensors.packed(kK), tensors.packed(kV), tensors.plain(kOut),
                                    tensors.plain(kDout), tensors.statistics(kLogSumExp), std::move(options));
  tensors.name_packed(dq, kDq);
  tensors.name_packed(dk, kDk);
  tensors.name_packed(dv, kDv);
  return tensors.build(handle);
}

/// cuDNN of one Exec.
class Cudnn {
 public:
  explicit Cudnn(Exec&) { check(cudnnCreate(&handle_)); }
  ~Cudnn() { cudnnDestroy(handle_); }
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;

  template <class Args>
  void run(Stream stream, const Args& args, Determinism determinism, const Tensor& scratch,
           std::unordered_map<std::int64_t, void*>& pointers) {
    constexpr bool is_forward = std::is_same_v<Args, AttentionForward>;
    const Key key = key_of(args, is_forward ? Determinism::required : determinism);
    std::map<Key, BuiltGraph>& graphs = is_forward ? forward_ : backward_;
    auto found = graphs.find(key);
    if (found == graphs.end())
      found = graphs.emplace(key, is_forward ? build_forward(key, handle_) : build_backward(key, handle_)).first;
    const BuiltGraph& built = found->second;
    if (built.scratch_bytes > scratch.bytes()) {
      throw BackendError(str("[attention", is_forward ? "" : "_backward", "] cuDNN asks for ", built.scratch_bytes,
                             " bytes of scratch, planned are ", scratch.bytes(), ", for batch ", key.batch, ", heads ",
                             key.heads, ", seq_len ", key.seq_len, ", head_dim ", key.head_dim,
                             "; use train.precision = \"fp32\", which does without cuDNN, or another cuDNN"));
    }
    check(cudnnSetStream(handle_, megalith::cuda::native(stream)));
    check(built.graph->execute(handle_, pointers, scratch.raw()));
  }

 private:
  cudnnHandle_t handle_ = nullptr;
  std::map<Key, BuiltGraph> forward_, backward_;
};

/// q, k or v (or their gradients) of the first token and head.
void* part(const Tensor& packed, Index head_dim, int number) {
  return static_cast<std::byte*>(packed.raw()) + number * head_dim * size_of(packed.dtype());
}

}  // namespace

bool has_cudnn() { return true; }

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();  // 91900 is 9.19.0
  return str(version / 10000, '.', version / 100 % 100, '.', version % 100, ", cudnn-frontend ",
             CUDNN_FRONTEND_MAJOR_VERSION, '.', CUDNN_FRONTEND_MINOR_VERSION, '.', CUDNN_FRONTEND_PATCH_VERSION);
}

void cudnn_attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch) {
  const Index d = args.out.dim(1) / args.num_heads;
  std::unordered_map<std::int64_t, void*> pointers = {{kQ, part(args.qkv, d, 0)},
                                                      {kK, part(args.qkv, d, 1)},
                                                      {kV, part(args.qkv, d, 2)},
                                                      {kOut, args.out.raw()},
                                                      {kLogSumExp, args.log_sum_exp.raw()}};
  ex.backend<Cudnn>().run(stream, args, ex.determinism(), scratch, pointers);
}

void cudnn_attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  const Index d = args.out.dim(1) / args.num_heads;
  std::unordered_map<std::int64_t, void*> pointers = {
      {kQ, part(args.qkv, d, 0)},   {kK, part(args.qkv, d, 1)},           {kV, part(args.qkv, d, 2)},
      {kOut, args.out.raw()},       {kLogSumExp, args.log_sum_exp.raw()}, {kDout, args.dout.raw()},
      {kDq, part(args.dqkv, d, 0)}, {kDk, part(args.dqkv, d, 1)},         {kDv, part(args.dqkv, d, 2)}};
  ex.backend<Cudnn>().run(stream, args, ex.determinism(), scratch, pointers);
}

}  // namespace megalith::ops::cuda
