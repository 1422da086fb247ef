// Compares our attention kernels, those for any GPU and those for Hopper, with plain f64 loops, also on unaligned
// tensors, then times them:
//   tiled_attention_check [check | time] [f32 | bf16 | f16]
// The precision is that of what is compared (default: all).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <vector>

#include "megalith/base/philox.h"
#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cuda/hopper_attention.h"
#include "megalith/ops/cuda/tiled_attention.h"
#include "megalith/ops/kept_patch.h"
#include "megalith/runtime/step_state.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/memory.h"

namespace megalith::ops {
namespace {

using Values = std::vector<double>;

struct Sizes {
  Index batch, seq_len, heads, head_dim;
  Index offset = 0;  // elements before each tensor: an odd one takes the path without 16-byte accesses
};
// None, one token, less than a tile, tiles cut off in the middle, rows of S not a multiple of 4, every tile of
// head_dim.
constexpr Sizes kSizes[] = {{0, 4, 2, 3},     {1, 1, 1, 1},       {2, 5, 3, 4},    {1, 70, 2, 8},
                            {1, 300, 1, 5},   {2, 129, 2, 64},    {1, 257, 3, 96}, {1, 200, 2, 80},
                            {1, 200, 2, 128}, {1, 65, 1, 256},    {1, 66, 1, 200}, {1, 70, 2, 32},
                            {1, 64, 2, 64},   {1, 130, 2, 64, 1}, {2, 600, 2, 64}, {1, 500, 2, 128}};

/// Which kernels of ours run.
using Kernels = cuda::AttentionKernels;
const char* name_of(Kernels kernels) { return kernels == Kernels::hopper ? "hopper" : "tiled "; }

AttentionShape shape_of(const Sizes& s, DType dtype, double probability) {
  return {.dtype = dtype,
          .batch = s.batch,
          .seq_len = s.seq_len,
          .num_heads = s.heads,
          .head_dim = s.head_dim,
          .dropout = probability};
}
/// The kernels that there are for a case.
std::vector<Kernels> kernels_for(const Sizes& s, DType dtype) {
  if (s.offset == 0 && cuda::is_for_hopper_attention(shape_of(s, dtype, 0))) return {Kernels::own, Kernels::hopper};
  return {Kernels::own};
}

/// Tolerances are relative to the largest value of a tensor.
struct Precision {
  DType dtype;
  double tolerance;
};
constexpr Precision kPrecisions[] = {{DType::f32, 2e-5}, {DType::bf16, 2e-2}, {DType::f16, 4e-3}};

constexpr double kProbability = 0.2;
constexpr StepState kState{.step = 4, .first_sample = 6, .loss_scale = 1};
constexpr std::uint64_t kSeed = 9;
constexpr std::uint32_t kSite = 2;
constexpr Index kFirstHead = 1;
constexpr Index num_global_heads(const Sizes& s) { return s.heads + 2; }

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

double keep(const Sizes& s, double probability, Index b, Index h, Index i, Index j) {
  if (probability == 0) return 1;
  const RandomSite site{.seed = kSeed, .step = static_cast<std::uint32_t>(kState.step), .site = kSite};
  const Index sample = static_cast<Index>(kState.first_sample) + b, head = kFirstHead + h;
  const auto global = static_cast<std::uint64_t>(sample * num_global_heads(s) + head);
  return is_kept(site, probability, global, s.seq_len, i, j) ? attention_kept_scale(probability) : 0;
}

/// qkv, dqkv [B*S, A*3*D]; out, dout [B*S, A*D]; log_sum_exp [B, A, S].
struct Result {
  Values out, log_sum_exp, dqkv;
};

/// One head, row by row: P = softmax(Q K^T / sqrt(D)), O = (P keep) V, dP = (dO V^T) keep, dS = P (dP - sum_j P dP).
void attend_head(const Sizes& s, double probability, Index b, Index h, const Values& qkv, const Values& dout,
                 Result& r) {
  const Index dim = s.head_dim, width = s.heads * dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const auto in_qkv = [&](Index i, Index part) { return at((b * s.seq_len + i) * 3 * width + (h * 3 + part) * dim); };
  const auto in_out = [&](Index i) { return at((b * s.seq_len + i) * width + h * dim); };
  const auto dot = [&](const double* x, const double* y) {
    double sum = 0;
    for (Index d = 0; d < dim; ++d) sum += x[d] * y[d];
    return sum;
  };
  const auto add = [&](double factor, const double* x, double* y) {
    for (Index d = 0; d < dim; ++d) y[d] += factor * x[d];
  };
  for (Index i = 0; i < s.seq_len; ++i) {
    Values p, dp;
    double sum = 0, mean_dp = 0;
    for (Index j = 0; j <= i; ++j) {
      p.push_back(std::exp(scale * dot(&qkv[in_qkv(i, 0)], &qkv[in_qkv(j, 1)])));
      sum += p.back();
    }
    r.log_sum_exp[at((b * s.heads + h) * s.seq_len + i)] = std::log(sum);
    for (Index j = 0; j <= i; ++j) {
      const double factor = keep(s, probability, b, h, i, j);
      p[at(j)] /= sum;
      dp.push_back(factor * dot(&dout[in_out(i)], &qkv[in_qkv(j, 2)]));
      mean_dp += p[at(j)] * dp.back();
      add(p[at(j)] * factor, &qkv[in_qkv(j, 2)], &r.out[in_out(i)]);
      add(p[at(j)] * factor, &dout[in_out(i)], &r.dqkv[in_qkv(j, 2)]);
    }
    for (Index j = 0; j <= i; ++j) {
      const double ds = p[at(j)] * (dp[at(j)] - mean_dp) * scale;
      add(ds, &qkv[in_qkv(j, 1)], &r.dqkv[in_qkv(i, 0)]);
      add(ds, &qkv[in_qkv(i, 0)], &r.dqkv[in_qkv(j, 1)]);
    }
  }
}

Result attended(const Sizes& s, double probability, const Values& qkv, const Values& dout) {
  Result r{Values(dout.size(), 0.0), Values(at(s.batch * s.heads * s.seq_len), 0.0), Values(qkv.size(), 0.0)};
  for (Index b = 0; b < s.batch; ++b) {
    for (Index h = 0; h < s.heads; ++h) attend_head(s, probability, b, h, qkv, dout, r);
  }
  return r;
}

/// Bytes of `values` in a dtype; `values` become what the bytes mean.
template <class T>
std::vector<std::byte> encoded(Values& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto rounded = static_cast<T>(static_cast<float>(values[i]));
    std::memcpy(&bytes[i * sizeof(T)], &rounded, sizeof(T));
    values[i] = static_cast<double>(static_cast<float>(rounded));
  }
  return bytes;
}

template <class T>
Values decoded(const std::vector<std::byte>& bytes) {
  Values values(bytes.size() / sizeof(T));
  for (std::size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, &bytes[i * sizeof(T)], sizeof(T));
    values[i] = static_cast<double>(static_cast<float>(value));
  }
  return values;
}

/// Calls f.template operator()<T>() with the host's type for a dtype.
template <class F>
auto dispatch(DType dtype, const F& f) {
  if (dtype == DType::bf16) return f.template operator()<bfloat16>();
  if (dtype == DType::f16) return f.template operator()<float16>();
  return f.template operator()<float>();
}

constexpr Index kGuardBytes = 256;

/// A tensor on the GPU that starts as NaN, `offset` elements into its memory and with a guard after it.
class GpuTensor {
 public:
  GpuTensor(const Shape& shape, DType dtype, Index offset = 0)
      : memory_((shape.numel() + offset) * size_of(dtype) + kGuardBytes, Device::cuda),
        view_(memory_.view(shape, dtype, offset * size_of(dtype))) {
    device::fill_bytes(Device::cuda, memory_.data(), 0xff, memory_.bytes(), {});
    device::synchronize(Device::cuda, {});
  }
  const Tensor& view() const { return view_; }
  /// Rounds `values` to the dtype and copies them.
  void put(Values& values) const {
    put_bytes(dispatch(view_.dtype(), [&]<class T>() { return encoded<T>(values); }));
  }
  void put_bytes(const std::vector<std::byte>& bytes) const {
    device::copy(Device::cuda, view_.raw(), bytes.data(), view_.bytes(), {});
    device::synchronize(Device::cuda, {});
  }
  std::vector<std::byte> bytes() const { return fetched(view_.raw(), view_.bytes()); }
  /// Whether nobody wrote past the end.
  bool guard_is_whole() const {
    const auto guard = fetched(memory_.data() + memory_.bytes() - kGuardBytes, kGuardBytes);
    return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == std::byte{0xff}; });
  }
  Values values() const {
    return dispatch(view_.dtype(), [&]<class T>() { return decoded<T>(bytes()); });
  }

 private:
  static std::vector<std::byte> fetched(const void* from, Index count) {
    std::vector<std::byte> bytes(at(count));
    device::copy(Device::cuda, bytes.data(), from, count, {});
    device::synchronize(Device::cuda, {});
    return bytes;
  }

  Buffer memory_;
  Tensor view_;
};

/// The tensors of one forward and backward.
struct Attention {
  Attention(const Sizes& s, DType dtype, double probability, Kernels family)
      : kernels(family),
        sizes(s),
        qkv({s.batch * s.seq_len, 3 * s.heads * s.head_dim}, dtype, s.offset),
        dout({s.batch * s.seq_len, s.heads * s.head_dim}, dtype, s.offset),
        out(dout.view().shape(), dtype, s.offset),
        log_sum_exp({s.batch, s.heads, s.seq_len}, DType::f32, s.offset),
        dqkv(qkv.view().shape(), dtype, s.offset),
        scratch({family == Kernels::hopper
                     ? cuda::hopper_attention_scratch_bytes(AttentionPass::backward, shape_of(s, dtype, probability))
                     : cuda::tiled_attention_backward_scratch_bytes(s.batch, s.seq_len, s.heads)},
                DType::u8),
        state({static_cast<Index>(sizeof(StepState))}, DType::u8) {
    std::vector<std::byte> bytes(sizeof(StepState));
    std::memcpy(bytes.data(), &kState, sizeof kState);
    state.put_bytes(bytes);
    dropout = {.probability = probability, .seed = kSeed, .site = kSite, .step_state = {}};
    if (probability > 0) dropout.step_state = state.view();
  }
  void forward() const {
    const AttentionForward args{.qkv = qkv.view(),
                                .out = out.view(),
                                .log_sum_exp = log_sum_exp.view(),
                                .batch = sizes.batch,
                                .seq_len = sizes.seq_len,
                                .num_heads = sizes.heads,
                                .first_head = kFirstHead,
                                .num_global_heads = num_global_heads(sizes),
                                .dropout = dropout};
    if (kernels == Kernels::hopper) return cuda::hopper_attention_forward({}, args);
    cuda::tiled_attention_forward({}, args);
  }
  void backward() const {
    const AttentionBackward args{.dout = dout.view(),
                                 .qkv = qkv.view(),
                                 .out = out.view(),
                                 .log_sum_exp = log_sum_exp.view(),
                                 .dqkv = dqkv.view(),
                                 .batch = sizes.batch,
                                 .seq_len = sizes.seq_len,
                                 .num_heads = sizes.heads,
                                 .first_head = kFirstHead,
                                 .num_global_heads = num_global_heads(sizes),
                                 .dropout = dropout};
    if (kernels == Kernels::hopper) return cuda::hopper_attention_backward({}, args, scratch.view());
    cuda::tiled_attention_backward({}, args, scratch.view());
  }

  Kernels kernels;
  Sizes sizes;
  GpuTensor qkv, dout;               // in
  GpuTensor out, log_sum_exp, dqkv;  // out
  GpuTensor scratch, state;
  Dropout dropout;
};

Values random_values(Index count, std::uint32_t site) {
  const RandomSite random{.seed = 1, .step = 0, .site = site};
  Values values;
  for (Index i = 0; i < count; ++i) values.push_back(random.normal(static_cast<std::uint64_t>(i)));
  return values;
}

/// Largest difference over the largest value; NaN counts as infinite.
double relative_error(const Values& got, const Values& want) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(got[i])) return INFINITY;
    difference = std::max(difference, std::abs(got[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return difference == 0 ? 0 : difference / largest;
}

/// Runs one case twice on fresh tensors; returns whether it is near the loops and both runs have the same bits.
bool passes(const Sizes& s, const Precision& precision, double probability, Kernels kernels) {
  Values qkv = random_values(s.batch * s.seq_len * 3 * s.heads * s.head_dim, 1);
  Values dout = random_values(s.batch * s.seq_len * s.heads * s.head_dim, 2);
  const Attention first(s, precision.dtype, probability, kernels), second(s, precision.dtype, probability, kernels);
  for (const Attention* run : {&first, &second}) {
    run->qkv.put(qkv);
    run->dout.put(dout);
    run->forward();
    run->backward();
  }
  const Result want = attended(s, probability, qkv, dout);
  const double out = relative_error(first.out.values(), want.out);
  const double log_sum_exp = relative_error(first.log_sum_exp.values(), want.log_sum_exp);
  const double dqkv = relative_error(first.dqkv.values(), want.dqkv);
  const bool same_bits = first.out.bytes() == second.out.bytes() && first.dqkv.bytes() == second.dqkv.bytes() &&
                         first.log_sum_exp.bytes() == second.log_sum_exp.bytes();
  const bool whole = first.out.guard_is_whole() && first.dqkv.guard_is_whole() && first.log_sum_exp.guard_is_whole() &&
                     first.scratch.guard_is_whole();
  const bool near = std::max({out, log_sum_exp, dqkv}) <= precision.tolerance;
  std::printf("%s %-4s B %lld S %3lld A %lld D %3lld%s p %.1f: out %.1e  log_sum_exp %.1e  dqkv %.1e  %s%s%s\n",
              name_of(kernels), name_of(precision.dtype).data(), static_cast<long long>(s.batch),
              static_cast<long long>(s.seq_len), static_cast<long long>(s.heads), static_cast<long long>(s.head_dim),
              s.offset > 0 ? " unaligned" : "", probability, out, log_sum_exp, dqkv, near ? "ok" : "FAILED",
              same_bits ? "" : ", OTHER BITS", whole ? "" : ", WROTE PAST THE END");
  return near && same_bits && whole;
}

int check(std::string_view only) {
  int passed = 0, failed = 0;
  for (const Precision& precision : kPrecisions) {
    if (!only.empty() && name_of(precision.dtype) != only) continue;
    for (const Sizes& s : kSizes) {
      for (const double probability : {0.0, kProbability}) {
        for (const Kernels kernels : kernels_for(s, precision.dtype))
          ++(passes(s, precision, probability, kernels) ? passed : failed);
      }
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return passed > 0 && failed == 0 ? 0 : 1;
}

/// Microseconds of f(), the median of 20 runs after 3.
template <class F>
double median_us(const F& f) {
  cudaEvent_t start = nullptr, stop = nullptr;
  megalith::cuda::check(cudaEventCreate(&start));
  megalith::cuda::check(cudaEventCreate(&stop));
  std::vector<float> times_ms;
  for (int run = 0; run < 23; ++run) {
    float time_ms = 0;
    megalith::cuda::check(cudaEventRecord(start, nullptr));
    f();
    megalith::cuda::check(cudaEventRecord(stop, nullptr));
    megalith::cuda::check(cudaEventSynchronize(stop));
    megalith::cuda::check(cudaEventElapsedTime(&time_ms, start, stop));
    if (run >= 3) times_ms.push_back(time_ms);
  }
  megalith::cuda::check(cudaEventDestroy(start));
  megalith::cuda::check(cudaEventDestroy(stop));
  std::nth_element(times_ms.begin(), times_ms.begin() + 10, times_ms.end());
  return 1e3 * static_cast<double>(times_ms[10]);
}

void time(const Sizes& s, DType dtype, double probability) {
  for (const Kernels kernels : kernels_for(s, dtype)) {
    const Attention attention(s, dtype, probability, kernels);
    Values qkv = random_values(s.seq_len * 3 * s.heads * s.head_dim, 1);
    Values dout = random_values(s.seq_len * s.heads * s.head_dim, 2);
    // Every sample the same: the generator on the host is slow.
    const auto repeat = [&](const Values& sample) {
      Values all;
      for (Index b = 0; b < s.batch; ++b) all.insert(all.end(), sample.begin(), sample.end());
      return all;
    };
    qkv = repeat(qkv);
    dout = repeat(dout);
    attention.qkv.put(qkv);
    attention.dout.put(dout);
    const double forward_us = median_us([&] { attention.forward(); });
    const double backward_us = median_us([&] { attention.backward(); });
    // Products under the causal mask: two forward, five in the backward pass that computes none twice.
    const double product = static_cast<double>(s.batch * s.heads) * static_cast<double>(s.seq_len * s.seq_len) *
                           static_cast<double>(s.head_dim);
    std::printf("%s %-4s B %lld S %lld A %lld D %lld p %.1f: forward %.1f us (%.0f TFLOP/s), backward %.1f us (%.0f)\n",
                name_of(kernels), name_of(dtype).data(), static_cast<long long>(s.batch),
                static_cast<long long>(s.seq_len), static_cast<long long>(s.heads), static_cast<long long>(s.head_dim),
                probability, forward_us, 2e-6 * product / forward_us, backward_us, 5e-6 * product / backward_us);
  }
}

}  // namespace
}  // namespace megalith::ops

int main(int argc, char** argv) {
  using megalith::DType;
  const std::string_view what = argc > 1 ? argv[1] : "all";
  try {
    const int status = what == "time" ? 0 : megalith::ops::check(argc > 2 ? argv[2] : "");
    if (what == "check") return status;
    for (const double probability : {0.0, 0.1}) {
      megalith::ops::time({32, 1024, 12, 64}, DType::bf16, probability);
      megalith::ops::time({8, 1024, 16, 128}, DType::bf16, probability);
      megalith::ops::time({8, 1024, 16, 96}, DType::bf16, probability);
      megalith::ops::time({8, 1024, 16, 64}, DType::f32, probability);
    }
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
