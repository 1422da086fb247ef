#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/cuda/padding.h"

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr Index kWordsOfBlock = 16 * kThreads;

__device__ Index length_of(const std::int32_t* lengths, Index sample, Index seq_len) {
  const Index length = lengths[sample];
  return length < 0 ? 0 : length > seq_len ? seq_len : length;
}

/// Part `blockIdx.y` of a sample is seq_len * row_words words. A block writes up to kWordsOfBlock of them, a thread
/// every kThreads-th.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    zero_padding_kernel(Word* data, Index row_words, Index seq_len, Index per_sample, const std::int32_t* lengths) {
  const Index part = blockIdx.y, words = seq_len * row_words;
  const Index begin = length_of(lengths, part / per_sample, seq_len) * row_words, first = blockIdx.x * kWordsOfBlock;
  const Index end = first + kWordsOfBlock < words ? first + kWordsOfBlock : words;
  if (end <= begin) return;
  Word* const words_of_part = data + part * words;
  for (Index i = first + threadIdx.x; i < end; i += kThreads)
    if (i >= begin) words_of_part[i] = Word{};
}

__global__ void __launch_bounds__(kThreads)
    repeat_lengths_kernel(const std::int32_t* lengths, Index seq_len, Index width, Index count, std::int32_t* to) {
  const Index i = static_cast<Index>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) to[i] = static_cast<std::int32_t>(length_of(lengths, i / width, seq_len));
}

template <class Word>
void zero_words(Stream stream, const SampleRows& rows, const Tensor& lengths) {
  const Index row_words = rows.row_bytes / Index{sizeof(Word)}, parts = lengths.numel() * rows.per_sample;
  const Index blocks = ceil_div(rows.seq_len * row_words, kWordsOfBlock);
  // The second dimension of a grid has 2^16 - 1 blocks at most.
  constexpr Index kMaxSubBatches = 65535;
  const Index samples_at_once = std::max(Index{1}, kMaxSubBatches / rows.per_sample);
  for (Index sample = 0; sample < lengths.numel(); sample += samples_at_once) {
    const Index count = std::min(parts - sample * rows.per_sample, samples_at_once * rows.per_sample);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(count));
    Word* const data = static_cast<Word*>(rows.data) + sample * rows.per_sample * rows.seq_len * row_words;
    zero_padding_kernel<<<grid, kThreads, 0, megalith::cuda::native(stream)>>>(
        data, row_words, rows.seq_len, rows.per_sample, pointer<const std::int32_t>(lengths) + sample);
    megalith::cuda::check(cudaGetLastError());
  }
}

}  // namespace

void zero_padding(Stream stream, const SampleRows& rows, const Tensor& lengths) {
  if (reinterpret_cast<std::uintptr_t>(rows.data) % 16 == 0 && rows.row_bytes % 16 == 0)
    zero_words<uint4>(stream, rows, lengths);
  else
    zero_words<std::uint32_t>(stream, rows, lengths);
}

void repeat_lengths(Stream stream, const Tensor& lengths, Index seq_len, Index width, std::int32_t* to) {
  const Index count = lengths.numel() * width;
  launch({stream, ceil_div(count, kThreads), kThreads}, repeat_lengths_kernel, pointer<const std::int32_t>(lengths),
         seq_len, width, count, to);
}

}  // namespace megalith::ops::cuda
