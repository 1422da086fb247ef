#include "megalith/ops/cuda/gemm_library.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include <cuda_runtime.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/ops/cuda/made_up_operands.h"
#include "megalith/ops/cuda/scaled_product.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::ops::cuda {
namespace {

using megalith::cuda::native;

constexpr int kCandidates = 16;  // the first ones of the library's own ranking
constexpr int kTimedRounds = 6;  // the fastest round counts, because noise only adds
/// A candidate that took this many times the fastest's time in two rounds is dropped. It would take time, and
/// warm the GPU, which then computes more slowly.
constexpr float kHopeless = 1.1f;
/// The gain that is needed to leave the library's first choice. A GPU at its power limit varies by percents from one
/// measurement to the next. An algorithm that wins by less alone may take more power, which a training step lacks.
constexpr float kMinGain = 0.07f;
/// Problems of passing shapes that are kept: a few KiB of host memory each.
constexpr std::size_t kMaxPassing = 4096;
/// The first cuBLASLt that scales blocks of E4M3, and its scale modes, which older headers do not name:
/// CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F and CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F.
constexpr std::size_t kFirstWithBlockScales = 120900;
constexpr std::int32_t kScaleVectors = 4, kScaleSquares = 5;
/// The id of our kernel in a GemmAlgorithm, whose tile is the columns of the form's. cuBLASLt's are not negative.
constexpr std::int64_t kOwnAlgorithm = -1;
constexpr Index kLaneWorkspaceBytes = kGemmWorkspaceBytes / static_cast<Index>(SideStreams::kCount);

void check(cublasStatus_t status, std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw BackendError(str("[gemm:", where.line(), "] cuBLASLt: ", cublasLtGetStatusString(status)));
}

/// False when the library reports that it has no such kernel, which is not an error. It documents the first status for
/// that. The second is the status of an argument that breaks a rule, and not all its rules are documented.
bool is_supported(cublasStatus_t status, std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  check(status, where);
  return true;
}

cudaDataType_t native_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::u8:
      return CUDA_R_8F_E4M3;
    default:
      throw BackendError(str("[gemm] dtype = ", name_of(dtype), ": needs f32, bf16, f16 or u8 (E4M3)"));
  }
}

cublasLtEpilogue_t native_epilogue(GemmEpilogue epilogue) {
  switch (epilogue) {
    case GemmEpilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmEpilogue::bias_gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmEpilogue::gelu_backward:
      return CUBLASLT_EPILOGUE_DGELU;
    case GemmEpilogue::gelu_backward_bias_grad:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
}

bool has_block_scales() { return cublasLtGetVersion() >= kFirstWithBlockScales; }

void set_scale_mode(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                    const std::optional<ScaleBlocks>& blocks) {
  if (blocks && has_block_scales())
    set(description, attribute, *blocks == ScaleBlocks::vectors ? kScaleVectors : kScaleSquares);
}

template <class T>
std::int64_t part_of(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t part) {
  T value{};
  std::size_t written = 0;
  check(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, part, &value, sizeof value, &written));
  return value;
}

/// The public configuration, attribute by attribute. Their types are those that cublasLt.h states.
GemmAlgorithm configuration_of(const cublasLtMatmulAlgo_t& algorithm) {
  return {.id = part_of<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
          .tile = part_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
          .stages = part_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
          .split_k = part_of<std::int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
          .reduction = part_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
          .swizzle = part_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
          .custom = part_of<std::uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
          .inner_shape = part_of<std::uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
          .cluster_shape = part_of<std::uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)};
}

cudaDeviceProp this_gpu() {
  int index = 0;
  cudaDeviceProp properties{};
  megalith::cuda::check(cudaGetDevice(&index));
  megalith::cuda::check(cudaGetDeviceProperties(&properties, index));
  return properties;
}

GemmPlatform platform_of(const cudaDeviceProp& properties) {
  return {.gpu = properties.name,
          .capability = str(properties.major, '.', properties.minor),
          .library = gemm_library_name()};
}

cublasLtMatrixLayout_t make_layout(DType dtype, Index rows, Index columns) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, native_type(dtype), static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), rows));
  return layout;
}

/// A pair of events, for times on the device.
class Timer {
 public:
  Timer() {
    megalith::cuda::check(cudaEventCreate(&begin_));
    megalith::cuda::check(cudaEventCreate(&end_));
  }
  ~Timer() {
    static_cast<void>(cudaEventDestroy(begin_));
    static_cast<void>(cudaEventDestroy(end_));
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  template <class F>
  float milliseconds(Stream stream, F&& work) {
    megalith::cuda::check(cudaEventRecord(begin_, native(stream)));
    work();
    megalith::cuda::check(cudaEventRecord(end_, native(stream)));
    megalith::cuda::check(cudaEventSynchronize(end_));
    float time = 0;
    megalith::cuda::check(cudaEventElapsedTime(&time, begin_, end_));
    return time;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

struct GemmLibrary::Offered {
  GemmAlgorithm algorithm;
  cublasLtMatmulAlgo_t native{};
  std::optional<ScaledKernel> own = {};  ///< a form of our kernel; `native` means nothing then
};

/// The library's description of a problem, and its algorithms for it. It counts in columns: a row-major [r, c] is its c
/// x r. So it computes c^T = op(b)^T op(a)^T, and our b is its first operand.
struct GemmLibrary::Prepared {
  GemmProblem problem;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  float beta = 0;
  std::vector<Offered> offered;  ///< empty: there is no algorithm for it
  std::size_t chosen = 0;

  /// `multiprocessors`: the number of SMs that it may take, where these are not all.
  Prepared(const GemmProblem& p, std::optional<int> multiprocessors)
      : problem(p), beta(p.write == Write::accumulate ? 1.0f : 0.0f) {
    check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t turned = CUBLAS_OP_T, straight = CUBLAS_OP_N;
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b == Transpose::yes ? turned : straight);
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a == Transpose::yes ? turned : straight);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, native_epilogue(p.epilogue));
    if (multiprocessors) set(description, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, std::int32_t{*multiprocessors});
    first = p.transpose_b == Transpose::yes ? make_layout(p.in, p.k, p.n) : make_layout(p.in, p.n, p.k);
    second = p.transpose_a == Transpose::yes ? make_layout(p.in, p.m, p.k) : make_layout(p.in, p.k, p.m);
    result = make_layout(p.out, p.n, p.m);
    set_scale_mode(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, p.b_scales);
    set_scale_mode(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, p.a_scales);
    if (p.epilogue == GemmEpilogue::bias || p.epilogue == GemmEpilogue::bias_gelu)
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, native_type(bias_dtype(p)));
    if (p.epilogue == GemmEpilogue::gelu_backward_bias_grad)
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    if (p.epilogue == GemmEpilogue::bias_gelu || p.epilogue == GemmEpilogue::gelu_backward ||
        p.epilogue == GemmEpilogue::gelu_backward_bias_grad) {
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, static_cast<std::int64_t>(p.n));
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, native_type(p.in));
    }
  }
  ~Prepared() {
    cublasLtMatrixLayoutDestroy(first);
    cublasLtMatrixLayoutDestroy(second);
    cublasLtMatrixLayoutDestroy(result);
    cublasLtMatmulDescDestroy(description);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;

  /// Each operand is `count` matrices, one behind the other.
  void set_batch(const GemmProblem& p, Index count) {
    const auto set_layout = [count](cublasLtMatrixLayout_t layout, std::int64_t elements) {
      const auto number = static_cast<std::int32_t>(count);
      check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &number, sizeof number));
      check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &elements,
                                             sizeof elements));
    };
    set_layout(first, p.n * p.k);
    set_layout(second, p.m * p.k);
    set_layout(result, p.m * p.n);
  }

  std::optional<std::size_t> find(const GemmAlgorithm& algorithm) const {
    const auto found = std::ranges::find(offered, algorithm, &Offered::algorithm);
    if (found == offered.end()) return std::nullopt;
    return static_cast<std::size_t>(found - offered.begin());
  }
  /// The chosen algorithm, or the library's first choice where that is not the library's; null: there is none.
  const Offered* of(GemmSource source) const {
    if (offered.empty()) return nullptr;
    if (source == GemmSource::any || !offered[chosen].own) return &offered[chosen];
    const auto found = std::ranges::find_if(offered, [](const Offered& one) { return !one.own; });
    return found == offered.end() ? nullptr : &*found;
  }
  void point_at(const GemmOperands& operands) const {
    if (operands.vector != nullptr) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.vector);
    if (operands.activation != nullptr)
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.activation);
    if (operands.b_scales != nullptr) set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, operands.b_scales);
    if (operands.a_scales != nullptr) set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, operands.a_scales);
  }
};

std::string gemm_version() {
  const std::size_t version = cublasLtGetVersion();  // 130100 is 13.1.0
  return str(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::string gemm_library_name() { return "cuBLASLt " + gemm_version(); }

GemmLibrary::GemmLibrary(Exec& ex) : ex_(ex), workspace_(kGemmWorkspaceBytes, ex.device()) {
  const cudaDeviceProp properties = this_gpu();
  platform_ = platform_of(properties);
  multiprocessors_ = properties.multiProcessorCount;
  cache_bytes_ = properties.l2CacheSize;
  check(cublasLtCreate(&handle_));
}

GemmLibrary::~GemmLibrary() {
  prepared_.clear();
  passing_.clear();
  passing_alike_.clear();
  batched_.clear();
  cublasLtDestroy(handle_);
}

bool GemmLibrary::has_algorithm(const GemmProblem& problem, GemmSource source) {
  return prepare(problem).of(source) != nullptr;
}

bool GemmLibrary::run(Stream stream, const GemmProblem& problem, const GemmOperands& operands, GemmSource source) {
  return run(stream, prepare(problem), operands, whole_workspace(), source);
}

bool GemmLibrary::run_passing(std::size_t lane, const GemmProblem& problem, const GemmProblem& like,
                              const GemmOperands& operands) {
  constexpr auto kShare = static_cast<std::size_t>(kLaneWorkspaceBytes);
  return run(lanes_.at(lane), prepare_passing(problem, like), operands,
             whole_workspace().subspan(lane * kShare, kShare));
}

bool GemmLibrary::run_batched(Stream stream, const GemmProblem& problem, Index count, const GemmOperands& operands) {
  std::unique_ptr<Prepared>& prepared = batched_[{problem, count}];
  if (prepared == nullptr) {
    prepared = described(problem);
    prepared->set_batch(problem, count);
    list(*prepared, problem, kGemmWorkspaceBytes, 1);
  }
  return run(stream, *prepared, operands, whole_workspace());
}

bool GemmLibrary::run(Stream stream, const Prepared& prepared, const GemmOperands& operands,
                      std::span<std::byte> workspace, GemmSource source) const {
  const Offered* const algorithm = prepared.of(source);
  if (algorithm == nullptr) return false;
  prepared.point_at(operands);
  check(launch(stream, prepared, operands, *algorithm, workspace));
  return true;
}

GemmTable GemmLibrary::current() const {
  GemmTable table{.platform = platform_, .products = {}};
  for (const auto& [problem, prepared] : prepared_) {
    if (!prepared->offered.empty()) table.products.emplace(problem, prepared->offered[prepared->chosen].algorithm);
  }
  return table;
}

bool GemmLibrary::offers(const GemmProblem& problem, const GemmAlgorithm& algorithm) {
  return prepare(problem).find(algorithm).has_value();
}

GemmAlgorithm GemmLibrary::fastest(const GemmProblem& problem, std::span<std::byte> scratch) {
  const Prepared& prepared = prepare(problem);
  const auto product = [&] { return str(problem.m, " x ", problem.n, " x ", problem.k); };
  if (prepared.offered.empty()) throw BackendError(str("[gemm] ", product(), ": cuBLASLt has no kernel for it"));
  if (prepared.offered.size() == 1) return prepared.offered.front().algorithm;
  std::optional<MadeUpOperands> operands;
  try {
    operands.emplace(problem, scratch, cache_bytes_, ex_.stream());
  } catch (const IoError& error) {
    log::warning(
        str("the product ", product(), " is not timed and runs by the library's first choice: ", error.what()));
    return prepared.offered.front().algorithm;
  }
  return prepared.offered[time(prepared, *operands)].algorithm;
}

void GemmLibrary::use(const GemmTable& table) {
  table_ = table;
  for (const auto& [problem, prepared] : prepared_) choose(*prepared, problem);
}

void GemmLibrary::choose(Prepared& prepared, const GemmProblem& problem) const {
  const auto entry = table_.products.find(problem);
  prepared.chosen = entry == table_.products.end() ? 0 : prepared.find(entry->second).value_or(0);
}

std::unique_ptr<GemmLibrary::Prepared> GemmLibrary::described(const GemmProblem& problem) const {
  std::optional<int> multiprocessors;
  if (problem.sm_margin > 0) multiprocessors = std::max(1, multiprocessors_ - problem.sm_margin);
  return std::make_unique<Prepared>(problem, multiprocessors);
}

GemmLibrary::Prepared& GemmLibrary::prepare(const GemmProblem& problem) {
  const auto found = prepared_.find(problem);
  if (found != prepared_.end()) return *found->second;
  std::unique_ptr<Prepared> prepared = described(problem);
  list(*prepared, problem, kGemmWorkspaceBytes, kCandidates);
  list_own(*prepared, problem);
  choose(*prepared, problem);
  return *prepared_.emplace(problem, std::move(prepared)).first->second;
}

GemmLibrary::Prepared& GemmLibrary::prepare_passing(const GemmProblem& problem, const GemmProblem& like) {
  if (const auto found = passing_.find(problem); found != passing_.end()) return *found->second;
  if (passing_.size() >= kMaxPassing) passing_.clear();
  std::unique_ptr<Prepared>& alike = passing_alike_[like];
  if (alike == nullptr) {
    alike = described(like);
    list(*alike, like, kLaneWorkspaceBytes, 1);
  }
  std::unique_ptr<Prepared> prepared = described(problem);
  if (!alike->offered.empty() && fits(*prepared, alike->offered.front().native))
    prepared->offered = alike->offered;
  else
    list(*prepared, problem, kLaneWorkspaceBytes, 1);
  return *passing_.emplace(problem, std::move(prepared)).first->second;
}

bool GemmLibrary::fits(const Prepared& prepared, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t result{};
  return is_supported(cublasLtMatmulAlgoCheck(handle_, prepared.description, prepared.first, prepared.second,
                                              prepared.result, prepared.result, &algorithm, &result)) &&
         result.workspaceSize <= static_cast<std::size_t>(kLaneWorkspaceBytes);
}

void GemmLibrary::list(Prepared& prepared, const GemmProblem& problem, Index workspace_bytes, int most) {
  ++times_asked_;
  const GemmBytes takes = bytes_of(problem);
  // CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD must be a multiple of 8. A problem that breaks the rule is not requested,
  // because the library may answer with another status than "no kernel".
  if (takes.activation > 0 && problem.n % 8 != 0) return;
  if (problem.a_scales && !has_block_scales()) return;
  // What is offered must follow from the problem alone. An address of exactly its alignment stands for all operands.
  std::byte* const anywhere = workspace_.data() + problem.alignment;
  prepared.point_at({.vector = takes.vector > 0 ? anywhere : nullptr,
                     .activation = takes.activation > 0 ? anywhere : nullptr,
                     .a_scales = takes.a_scales > 0 ? workspace_.data() : nullptr,
                     .b_scales = takes.b_scales > 0 ? workspace_.data() : nullptr});
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference));
  const auto bytes = static_cast<std::size_t>(workspace_bytes);
  check(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  const auto alignment = static_cast<std::uint32_t>(problem.alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<std::size_t>(most));
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, prepared.description, prepared.first, prepared.second, prepared.result,
                                     prepared.result, preference, most, results.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (!is_supported(status)) return;
  results.resize(static_cast<std::size_t>(count));
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    GemmAlgorithm algorithm = configuration_of(result.algo);
    while (prepared.find(algorithm)) ++algorithm.ordinal;
    prepared.offered.push_back({algorithm, result.algo});
  }
}

void GemmLibrary::list_own(Prepared& prepared, const GemmProblem& problem) {
  if (!problem.a_scales || !why_no_scaled_product(ex_, problem).empty()) return;
  std::vector<Offered> own;
  for (const ScaledKernel form : scaled_forms(ex_, problem))
    own.push_back({{.id = kOwnAlgorithm, .tile = form == ScaledKernel::tiles_128 ? 128 : 192}, {}, form});
  const bool is_first = is_scaled_product_faster(ex_, problem);
  prepared.offered.insert(is_first ? prepared.offered.begin() : prepared.offered.end(), own.begin(), own.end());
}

cublasStatus_t GemmLibrary::launch(Stream stream, const Prepared& prepared, const GemmOperands& operands,
                                   const Offered& algorithm, std::span<std::byte> workspace) const {
  if (algorithm.own) {
    scaled_product(ex_, stream, *algorithm.own, prepared.problem, operands);
    return CUBLAS_STATUS_SUCCESS;
  }
  const float one = 1;
  return cublasLtMatmul(handle_, prepared.description, &one, operands.b, prepared.first, operands.a, prepared.second,
                        &prepared.beta, operands.c, prepared.result, operands.c, prepared.result, &algorithm.native,
                        workspace.data(), workspace.size(), native(stream));
}

/// The index of the fastest among those offered, or 0 where it wins too little.
std::size_t GemmLibrary::time(const Prepared& prepared, const MadeUpOperands& operands) const {
  prepared.point_at(operands.get());
  Timer timer;
  std::vector<float> times(prepared.offered.size(), std::numeric_limits<float>::max());
  float least = times.front();
  for (int round = 0; round < kTimedRounds; ++round) {
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (round > 2 && i > 0 && times[i] > kHopeless * least) continue;  // the first is the one to beat
      operands.fill_cache(ex_.stream());
      bool ran = true;
      const float time = timer.milliseconds(ex_.stream(), [&] {
        ran = is_supported(launch(ex_.stream(), prepared, operands.get(), prepared.offered[i], whole_workspace()));
      });
      if (ran && round > 0) times[i] = std::min(times[i], time);  // round 0 loads the kernels
      least = std::min(least, times[i]);
    }
  }
  const auto fastest = std::ranges::min_element(times);
  return *fastest < (1 - kMinGain) * times.front() ? static_cast<std::size_t>(fastest - times.begin()) : 0;
}

}  // namespace megalith::ops::cuda
