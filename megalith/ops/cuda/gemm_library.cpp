#include "megalith/ops/cuda/gemm_library.h"

#include <algorithm>
#include <limits>
#include <source_location>

#include <cuda_runtime.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cuda/gemm.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::ops::cuda {
namespace {

using megalith::cuda::native;

constexpr int kCandidates = 16;  // that the library's own ranking puts first
constexpr int kTimedRounds = 4;  // of every candidate; the fastest counts: noise only adds
constexpr int kRunsPerRound = 2;

void check(cublasStatus_t status, std::source_location where = std::source_location::current()) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw BackendError(str("[gemm:", where.line(), "] cuBLASLt: ", cublasLtGetStatusString(status)));
}

cudaDataType_t native_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      throw BackendError(str("[gemm] dtype = ", name_of(dtype), ": needs f32, bf16 or f16"));
  }
}

cublasLtEpilogue_t native_epilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::bias_gelu:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case Epilogue::gelu_backward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::gelu_backward_bias_grad:
      return CUBLASLT_EPILOGUE_DGELU_BGRAD;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

template <class T>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof value));
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

/// The library's description of a problem. It counts in columns: a row-major [r, c] is its c x r, so c^T = op(b)^T
/// op(a)^T is what it computes, our b being its first operand.
struct GemmLibrary::Prepared {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
  float beta = 0;
  bool usable = false;
  cublasLtMatmulAlgo_t algorithm{};

  explicit Prepared(const GemmProblem& p) : beta(p.accumulate != 0 ? 1.0f : 0.0f) {
    check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t turned = CUBLAS_OP_T, straight = CUBLAS_OP_N;
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, p.transpose_b != 0 ? turned : straight);
    set(description, CUBLASLT_MATMUL_DESC_TRANSB, p.transpose_a != 0 ? turned : straight);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, native_epilogue(p.epilogue));
    first = p.transpose_b != 0 ? make_layout(p.in, p.k, p.n) : make_layout(p.in, p.n, p.k);
    second = p.transpose_a != 0 ? make_layout(p.in, p.m, p.k) : make_layout(p.in, p.k, p.m);
    result = make_layout(p.out, p.n, p.m);
    if (p.epilogue == Epilogue::bias || p.epilogue == Epilogue::bias_gelu)
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, native_type(p.in));
    if (p.epilogue == Epilogue::gelu_backward_bias_grad)
      set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
    if (p.epilogue == Epilogue::bias_gelu || p.epilogue == Epilogue::gelu_backward ||
        p.epilogue == Epilogue::gelu_backward_bias_grad) {
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

  void point_at(const GemmOperands& operands) const {
    if (operands.vector != nullptr) set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.vector);
    if (operands.activation != nullptr)
      set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.activation);
  }
};

std::string gemm_version() {
  const std::size_t version = cublasLtGetVersion();  // 130100 is 13.1.0
  return str(version / 10000, '.', version / 100 % 100, '.', version % 100);
}

GemmLibrary::GemmLibrary(Exec& ex) : workspace_(kGemmWorkspaceBytes, ex.device()) { check(cublasLtCreate(&handle_)); }

GemmLibrary::~GemmLibrary() {
  prepared_.clear();
  cublasLtDestroy(handle_);
}

bool GemmLibrary::run(Stream stream, const GemmProblem& problem, const GemmOperands& operands) {
  const Prepared& prepared = prepare(stream, problem, operands);
  if (!prepared.usable) return false;
  prepared.point_at(operands);
  check(launch(stream, prepared, operands, prepared.algorithm));
  return true;
}

GemmLibrary::Prepared& GemmLibrary::prepare(Stream stream, const GemmProblem& problem, const GemmOperands& operands) {
  const auto found = prepared_.find(problem);
  if (found != prepared_.end()) return *found->second;
  auto prepared = std::make_unique<Prepared>(problem);
  prepared->point_at(operands);
  choose(stream, *prepared, problem, operands);
  return *prepared_.emplace(problem, std::move(prepared)).first->second;
}

std::vector<cublasLtMatmulHeuristicResult_t> GemmLibrary::candidates(const Prepared& prepared,
                                                                     const GemmProblem& problem) const {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference));
  const auto bytes = static_cast<std::size_t>(kGemmWorkspaceBytes);
  check(
      cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  const auto alignment = static_cast<std::uint32_t>(problem.alignment);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment));
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(kCandidates);
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, prepared.description, prepared.first, prepared.second, prepared.result,
                                     prepared.result, preference, kCandidates, results.data(), &count);
  cublasLtMatmulPreferenceDestroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS) count = 0;  // CUBLAS_STATUS_NOT_SUPPORTED: no such kernel
  results.resize(static_cast<std::size_t>(count));
  std::erase_if(results, [](const auto& result) { return result.state != CUBLAS_STATUS_SUCCESS; });
  return results;
}

cublasStatus_t GemmLibrary::launch(Stream stream, const Prepared& prepared, const GemmOperands& operands,
                                   const cublasLtMatmulAlgo_t& algorithm) const {
  const float one = 1;
  return cublasLtMatmul(handle_, prepared.description, &one, operands.b, prepared.first, operands.a, prepared.second,
                        &prepared.beta, operands.c, prepared.result, operands.c, prepared.result, &algorithm,
                        workspace_.data(), static_cast<std::size_t>(workspace_.bytes()), native(stream));
}

void GemmLibrary::choose(Stream stream, Prepared& prepared, const GemmProblem& problem, const GemmOperands& operands) {
  const std::vector<cublasLtMatmulHeuristicResult_t> offered = candidates(prepared, problem);
  if (offered.empty()) return;
  prepared.usable = true;
  prepared.algorithm = offered.front().algo;
  if (offered.size() == 1) return;
  Buffer kept;
  const Index result_bytes = problem.m * problem.n * size_of(problem.out);
  if (problem.accumulate != 0) {
    kept = Buffer(result_bytes, Device::cuda);
    device::copy(Device::cuda, kept.data(), operands.c, result_bytes, stream);
  }
  Timer timer;
  float best = std::numeric_limits<float>::max();
  std::vector<float> times(offered.size(), best);
  for (int round = 0; round < kTimedRounds; ++round) {
    for (std::size_t i = 0; i < offered.size(); ++i) {
      bool ran = true;
      const float time = timer.milliseconds(stream, [&] {
        for (int run = 0; run < kRunsPerRound; ++run)
          ran = ran && launch(stream, prepared, operands, offered[i].algo) == CUBLAS_STATUS_SUCCESS;
      });
      if (ran && round > 0) times[i] = std::min(times[i], time);
    }
  }
  for (std::size_t i = 0; i < offered.size(); ++i) {
    if (times[i] >= best) continue;
    best = times[i];
    prepared.algorithm = offered[i].algo;
  }
  if (problem.accumulate != 0) {
    device::copy(Device::cuda, operands.c, kept.data(), result_bytes, stream);
    device::synchronize(Device::cuda, stream);
  }
}

}  // namespace megalith::ops::cuda
