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
#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/cudnn_versions.h"
#include "megalith/ops/cuda/padding.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/driver.h"
#include "megalith/tensor/cuda/gpu_attribute.h"
#include "megalith/tensor/gpu_pretence.h"

// Groups of heads. Within a token, head h stands at (h / R (R + 2) + h % R) D with R = A/G. No single stride gives that
// when there are several groups of several heads. Within one sample strides do. The groups are what cuDNN calls a
// batch, (R + 2) D apart. Each has R heads and one k and v. So a pass is one call per sample, and nothing moves that
// cuDNN would not move anyway. Where heads turn (ops/rope.h), rope() brings them into parts, and a pass is one call.
// The alternatives elsewhere:
//   Copies of q, and of dq back, in a layout with one stride cost 2 T A D elements forward and 4 backward. The gradient
//   of T 4096, A 32, D 128 in bf16: 134 MB, computed 40 us of an H100's memory beside 0.6 ms of products.
//   One call per group over all samples moves nothing either. But before 9.26 cuDNN reads log_sum_exp only where the
//   heads of a call are all of a sample's.
//   Our own kernel takes 1.4 times cuDNN's time.
//
// Lengths. cuDNN's padding mask gives weights of 0 to padding and multiplies by them, so a NaN in padding would come
// through. Copies of qkv and dout without padding would move 6 T A D elements forward and 8 backward (G = A). In bf16
// with B 32, S 512, A 16, D 64 that is 201 and 268 MB, computed 60 and 80 us of an H100's memory. It is no less than
// what cuDNN wins over our own kernel there. So padding is overwritten by zeros in place, which moves the padding
// alone, once.

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
  Index batch = 0, heads = 0, kv_heads = 0, seq_len = 0, head_dim = 0;
  AttentionMask mask = AttentionMask::causal;
  SampleLengths lengths = SampleLengths::equal;
  QkvOrder order = QkvOrder::groups;
  DType dtype = DType::bf16;
  Determinism determinism = Determinism::required;
  auto operator<=>(const Key&) const = default;
};

/// The forward pass is always deterministic.
Key key_of(AttentionPass pass, const AttentionShape& shape, Determinism determinism) {
  return {.pass = pass,
          .batch = shape.batch,
          .heads = shape.num_heads,
          .kv_heads = kv_heads_of(shape),
          .seq_len = shape.seq_len,
          .head_dim = shape.head_dim,
          .mask = shape.mask,
          .lengths = shape.lengths,
          .order = shape.order,
          .dtype = shape.dtype,
          .determinism = pass == AttentionPass::forward ? Determinism::required : determinism};
}

/// Whether the graph has a padding mask.
bool has_lengths(const Key& key) {
  return key.lengths == SampleLengths::given || needs_lengths(cudnnGetVersion(), key.pass, key.seq_len);
}

/// The tensors of one call of a pass, as [batch, heads, S, D], in elements.
struct CallLayout {
  Index calls = 1, batch = 0, heads = 0, kv_heads = 0;
  Index qkv_batch = 0, q_head = 0, kv_head = 0, out_batch = 0;  ///< strides
  Index qkv_token = 0, out_token = 0;
  Index lengths_per_sample = 1;  ///< copies of a length that its call reads, filled up to 16 bytes
};

CallLayout layout_of(const Key& key) {
  const Index sharing = key.heads / key.kv_heads, group = (sharing + 2) * key.head_dim;
  const bool in_parts = key.order == QkvOrder::parts;
  CallLayout layout{.batch = key.batch,
                    .heads = key.heads,
                    .kv_heads = key.kv_heads,
                    .q_head = sharing == 1 && !in_parts ? group : key.head_dim,
                    .kv_head = in_parts ? key.head_dim : group,
                    .qkv_token = key.kv_heads * group,
                    .out_token = key.heads * key.head_dim};
  layout.qkv_batch = key.seq_len * layout.qkv_token;
  layout.out_batch = key.seq_len * layout.out_token;
  if (sharing == 1 || key.kv_heads == 1 || in_parts) return layout;
  layout.calls = key.batch;
  layout.batch = key.kv_heads;
  layout.heads = sharing;
  layout.kv_heads = 1;
  layout.qkv_batch = group;
  layout.out_batch = sharing * key.head_dim;
  layout.lengths_per_sample = round_up(key.kv_heads, 4);
  return layout;
}

/// Names of the tensors of a graph.
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kLogSumExp, kDout, kDq, kDk, kDv, kLengthsQ, kLengthsK };

/// Scratch: cuDNN's own and, from `lengths_offset` on, the lengths of every call where the graph has those.
struct BuiltGraph {
  std::shared_ptr<fe::graph::Graph> graph;
  Index lengths_offset = 0, scratch_bytes = 0;
};

using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Bytes of the lengths of a call. The next call's start at a multiple of 16.
Index lengths_bytes(const CallLayout& layout) { return round_up(layout.batch * size_of(DType::i32), 16); }

/// The tensors of a call, as cuDNN's descriptions: [batch, heads, S, D] with the strides of the packed layout.
class Tensors {
 public:
  explicit Tensors(const Key& key) : key_(key), layout_(layout_of(key)), graph_(std::make_shared<fe::graph::Graph>()) {
    graph_->set_io_data_type(key.dtype == DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }
  fe::graph::Graph& graph() { return *graph_; }

  // q, k or v inside qkv [B*S, (A + 2G)*D]
  TensorPtr queries(Uid uid) { return graph_->tensor(in_qkv(uid, layout_.heads, layout_.q_head)); }
  TensorPtr keys(Uid uid) { return graph_->tensor(in_qkv(uid, layout_.kv_heads, layout_.kv_head)); }
  TensorPtr plain(Uid uid) { return graph_->tensor(in_out(uid)); }  // [B*S, A*D]
  void name_queries(const TensorPtr& output, Uid uid) const {
    name(output, in_qkv(uid, layout_.heads, layout_.q_head));
  }
  void name_keys(const TensorPtr& output, Uid uid) const {
    name(output, in_qkv(uid, layout_.kv_heads, layout_.kv_head));
  }
  void name_plain(const TensorPtr& output, Uid uid) const { name(output, in_out(uid)); }
  TensorPtr statistics(Uid uid) { return graph_->tensor(statistics_shape(uid)); }  // [B, A, S]
  void name_statistics(const TensorPtr& output, Uid uid) const {
    name(output, statistics_shape(uid));
    output->set_data_type(fe::DataType_t::FLOAT);
  }

  template <class Options>
  void set_masks(Options& options) {
    options.set_causal_mask(key_.mask == AttentionMask::causal);
    if (has_lengths(key_))
      options.set_padding_mask(true).set_seq_len_q(lengths(kLengthsQ)).set_seq_len_kv(lengths(kLengthsK));
  }
  TensorPtr lengths(Uid uid) {  // [batch]
    return graph_->tensor(fe::graph::Tensor_attributes()
                              .set_uid(uid)
                              .set_dim({layout_.batch, 1, 1, 1})
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
    return {graph_, offset, has_lengths(key_) ? offset + layout_.calls * lengths_bytes(layout_) : Index{bytes}};
  }

 private:
  fe::graph::Tensor_attributes in_qkv(Uid uid, Index heads, Index head_stride) const {
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_dim({layout_.batch, heads, key_.seq_len, key_.head_dim})
        .set_stride({layout_.qkv_batch, head_stride, layout_.qkv_token, 1});
  }
  fe::graph::Tensor_attributes in_out(Uid uid) const {
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_dim({layout_.batch, layout_.heads, key_.seq_len, key_.head_dim})
        .set_stride({layout_.out_batch, key_.head_dim, layout_.out_token, 1});
  }
  fe::graph::Tensor_attributes statistics_shape(Uid uid) const {
    return fe::graph::Tensor_attributes()
        .set_uid(uid)
        .set_dim({layout_.batch, layout_.heads, key_.seq_len, 1})
        .set_stride({layout_.heads * key_.seq_len, key_.seq_len, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
  }
  static void name(const TensorPtr& output, const fe::graph::Tensor_attributes& as) {
    output->set_output(true).set_uid(as.get_uid()).set_dim(as.get_dim()).set_stride(as.get_stride());
  }

  Key key_;
  CallLayout layout_;
  std::shared_ptr<fe::graph::Graph> graph_;
};

float scale_of(const Key& key) { return 1.0f / std::sqrt(static_cast<float>(key.head_dim)); }

BuiltGraph build_forward(const Key& key, cudnnHandle_t handle) {
  Tensors tensors(key);
  auto options =
      fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true).set_attn_scale(scale_of(key));
  tensors.set_masks(options);
  auto [out, statistics] =
      tensors.graph().sdpa(tensors.queries(kQ), tensors.keys(kK), tensors.keys(kV), std::move(options));
  tensors.name_plain(out, kOut);
  tensors.name_statistics(statistics, kLogSumExp);
  return tensors.build(handle);
}

BuiltGraph build_backward(const Key& key, cudnnHandle_t handle) {
  Tensors tensors(key);
  auto options = fe::graph::SDPA_backward_attributes()
                     .set_name("attention_backward")
                     .set_attn_scale(scale_of(key))
                     .set_deterministic_algorithm(key.determinism == Determinism::required);
  tensors.set_masks(options);
  auto [dq, dk, dv] =
      tensors.graph().sdpa_backward(tensors.queries(kQ), tensors.keys(kK), tensors.keys(kV), tensors.plain(kOut),
                                    tensors.plain(kDout), tensors.statistics(kLogSumExp), std::move(options));
  tensors.name_queries(dq, kDq);
  tensors.name_keys(dk, kDk);
  tensors.name_keys(dv, kDv);
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

/// A tensor of a graph: its address in the first call, and the bytes from one call's to the next's.
struct Operand {
  Uid uid;
  void* data;
  Index call_bytes;
};

/// The cuDNN handle and graphs of one Exec.
class Cudnn {
 public:
  explicit Cudnn(Exec&) {}

  void run(Stream stream, const Key& key, const Tensor& scratch, const Tensor& lengths,
           std::initializer_list<Operand> operands) {
    auto found = graphs_.find(key);
    if (found == graphs_.end()) found = graphs_.emplace(key, build(key, handle_.get())).first;
    const BuiltGraph& built = found->second;
    if (built.scratch_bytes > scratch.bytes()) {
      throw BackendError(str("[attention] cuDNN requires ", built.scratch_bytes,
                             " bytes of scratch, before it asked for ", scratch.bytes(),
                             "; use train.precision = \"fp32\", which does without cuDNN"));
    }
    const CallLayout layout = layout_of(key);
    std::byte* const of_calls = static_cast<std::byte*>(scratch.raw()) + built.lengths_offset;
    if (has_lengths(key)) put_lengths(stream, key, lengths, of_calls);
    check(cudnnSetStream(handle_.get(), megalith::cuda::native(stream)));
    std::unordered_map<std::int64_t, void*> pointers;
    for (Index call = 0; call < layout.calls; ++call) {
      for (const Operand& operand : operands)
        pointers[operand.uid] = static_cast<std::byte*>(operand.data) + call * operand.call_bytes;
      if (has_lengths(key)) pointers[kLengthsQ] = pointers[kLengthsK] = of_calls + call * lengths_bytes(layout);
      check(built.graph->execute(handle_.get(), pointers, scratch.raw()));
    }
  }

 private:
  /// The lengths of every call: those of its samples, or that of its sample for each group.
  static void put_lengths(Stream stream, const Key& key, const Tensor& lengths, std::byte* to) {
    const CallLayout layout = layout_of(key);
    if (lengths) {
      auto* const words = reinterpret_cast<std::int32_t*>(to);
      return repeat_lengths(stream, lengths, key.seq_len, layout.lengths_per_sample, words);
    }
    const auto count = static_cast<std::size_t>(layout.calls * lengths_bytes(layout) / size_of(DType::i32));
    megalith::cuda::check_driver(MEGALITH_DRIVER(cuMemsetD32Async)(
        reinterpret_cast<CUdeviceptr>(to), static_cast<unsigned>(key.seq_len), count, megalith::cuda::native(stream)));
  }

  Handle handle_;
  std::map<Key, BuiltGraph> graphs_;  // destroyed before the handle
};

std::string version_text(std::size_t version) {  // 91900 is 9.19.0
  return str(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

CudnnAnswer refused(std::string_view why) {
  return {.scratch_bytes = 0, .kernel = "", .refusal = str("cuDNN ", version_text(cudnnGetVersion()), ": ", why)};
}

/// Builds the graph to see whether cuDNN has a kernel.
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

/// q, k or v (or their gradients) of every call: from the head at `place` in the first group of the first token on.
Operand part(Uid uid, const Tensor& qkv, const Key& key, Index place) {
  const Index element = size_of(qkv.dtype()), sharing = key.heads / key.kv_heads;
  const Index number = key.order == QkvOrder::parts ? place_in_parts(place, sharing, key.kv_heads) : place;
  return {uid, static_cast<std::byte*>(qkv.raw()) + number * key.head_dim * element,
          key.seq_len * layout_of(key).qkv_token * element};
}
/// A tensor [B, ...]. Each call has one sample of it.
Operand whole(Uid uid, const Tensor& tensor, const Key& key) { return {uid, tensor.raw(), tensor.bytes() / key.batch}; }

/// rows [B*S, columns]
void zero_padding_of(Stream stream, const Tensor& rows, Index seq_len, const Tensor& lengths) {
  zero_padding(stream, {.data = rows.raw(), .row_bytes = rows.bytes() / rows.dim(0), .seq_len = seq_len}, lengths);
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
  CudnnAnswer answer = answer_to(question.second);  // ranks query at once, each for its own GPU
  const std::lock_guard lock(mutex);
  return answers.emplace(question, std::move(answer)).first->second;
}

void cudnn_attention_forward(Exec& ex, Stream stream, const AttentionForward& args, const Tensor& scratch) {
  const Key key = key_of(AttentionPass::forward, shape_of(args), ex.determinism());
  const Index sharing = key.heads / key.kv_heads;
  if (args.lengths) zero_padding_of(stream, args.qkv, args.seq_len, args.lengths);
  ex.backend<Cudnn>().run(
      stream, key, scratch, args.lengths,
      {part(kQ, args.qkv, key, 0), part(kK, args.qkv, key, sharing), part(kV, args.qkv, key, sharing + 1),
       whole(kOut, args.out, key), whole(kLogSumExp, args.log_sum_exp, key)});
  if (!args.lengths) return;
  zero_padding_of(stream, args.out, args.seq_len, args.lengths);
  zero_padding(stream,
               {.data = args.log_sum_exp.raw(),
                .row_bytes = size_of(DType::f32),
                .seq_len = args.seq_len,
                .per_sample = args.num_heads},
               args.lengths);
}

void cudnn_attention_backward(Exec& ex, Stream stream, const AttentionBackward& args, const Tensor& scratch) {
  const Key key = key_of(AttentionPass::backward, shape_of(args), ex.determinism());
  const Index sharing = key.heads / key.kv_heads;
  if (args.lengths) {
    zero_padding_of(stream, args.qkv, args.seq_len, args.lengths);
    zero_padding_of(stream, args.dout, args.seq_len, args.lengths);
  }
  ex.backend<Cudnn>().run(
      stream, key, scratch, args.lengths,
      {part(kQ, args.qkv, key, 0), part(kK, args.qkv, key, sharing), part(kV, args.qkv, key, sharing + 1),
       whole(kOut, args.out, key), whole(kLogSumExp, args.log_sum_exp, key), whole(kDout, args.dout, key),
       part(kDq, args.dqkv, key, 0), part(kDk, args.dqkv, key, sharing), part(kDv, args.dqkv, key, sharing + 1)});
  if (args.lengths) zero_padding_of(stream, args.dqkv, args.seq_len, args.lengths);
}

}  // namespace megalith::ops::cuda
