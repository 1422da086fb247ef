#include "megalith/ops/cuda/common.cuh"
#include "megalith/ops/expert_choices_kernels.h"

// One thread per number, except for the map of regrouped rows: one block per pair of source and expert.

namespace megalith::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ Index number_of_thread() { return blockIdx.x * Index{kThreads} + threadIdx.x; }

__global__ void place_choices_kernel(const std::int32_t* experts, std::int32_t* destinations, Index count,
                                     ExpertRanks ranks) {
  const Index i = number_of_thread();
  if (i >= count) return;
  const std::int32_t expert = experts[i / ranks.slices];
  destinations[i] = expert < 0 ? -1 : static_cast<std::int32_t>(ranks.destination(expert, i % ranks.slices));
}

__global__ void repeat_choices_kernel(const float* from, float* to, Index count, Index slices) {
  const Index i = number_of_thread();
  if (i < count) to[i] = from[i / slices];
}

__global__ void sum_slices_kernel(const float* from, float* to, Index count, Index slices) {
  const Index i = number_of_thread();
  if (i >= count) return;
  float sum = 0;
  for (Index slice = 0; slice < slices; ++slice) sum += from[i * slices + slice];
  to[i] = sum;
}

__global__ void even_choices_kernel(std::int32_t* experts, Index count, Index first, Index num_experts) {
  const Index i = number_of_thread();
  if (i < count) experts[i] = static_cast<std::int32_t>((first + i) % num_experts);
}

/// The numbers of rows from a source for a local expert.
struct SegmentCounts {
  const std::int64_t* counts;  // null: all are `each`
  Index columns, first, local, each;
  __device__ std::int64_t of(Index source, Index expert) const {
    return counts == nullptr ? each : counts[source * columns + first + expert];
  }
};

/// One thread: at most a few thousand segments. segments: as on the CPU.
__global__ void find_segments_kernel(SegmentCounts counts, Index sources, std::int64_t* segments) {
  const Index local = counts.local;
  std::int64_t next = 0;
  for (Index i = 0; i < sources * local; ++i) {
    segments[i] = next;
    next += counts.of(i / local, i % local);
  }
  next = 0;
  for (Index l = 0; l < local; ++l) {
    for (Index s = 0; s < sources; ++s) {
      segments[sources * local + s * local + l] = next;
      next += counts.of(s, l);
    }
  }
}

__global__ void clear_maps_kernel(std::int32_t* row_of, std::int32_t* arrived_at, Index rows) {
  const Index row = number_of_thread();
  if (row >= rows) return;
  row_of[row] = -1;
  arrived_at[row] = -1;
}

/// Writes 8 bytes per row.
__global__ void regroup_rows_kernel(SegmentCounts counts, const std::int64_t* segments, Index rows,
                                    std::int32_t* row_of, std::int32_t* arrived_at) {
  const Index segment = blockIdx.x;
  const std::int64_t count = counts.of(segment / counts.local, segment % counts.local);
  const std::int64_t from = segments[segment], to = segments[gridDim.x + segment];
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) {
    if (from + i >= rows || to + i >= rows) return;
    row_of[from + i] = static_cast<std::int32_t>(to + i);
    arrived_at[to + i] = static_cast<std::int32_t>(from + i);
  }
}

Launch one_each(Stream stream, Index count) { return {stream, ceil_div(count, kThreads), kThreads}; }

}  // namespace

void place_choices(Stream stream, const PlaceChoices& args) {
  const Index count = args.destinations.numel();
  launch(one_each(stream, count), place_choices_kernel, pointer<const std::int32_t>(args.experts),
         pointer<std::int32_t>(args.destinations), count, args.ranks);
}

void repeat_choices(Stream stream, const Tensor& of_choices, const Tensor& of_slices) {
  const Index count = of_slices.numel();
  launch(one_each(stream, count), repeat_choices_kernel, pointer<const float>(of_choices), pointer<float>(of_slices),
         count, of_slices.dim(1) / of_choices.dim(1));
}

void sum_slices(Stream stream, const Tensor& of_slices, const Tensor& of_choices) {
  const Index count = of_choices.numel();
  launch(one_each(stream, count), sum_slices_kernel, pointer<const float>(of_slices), pointer<float>(of_choices), count,
         of_slices.dim(1) / of_choices.dim(1));
}

void even_choices(Stream stream, const EvenChoices& args) {
  const Index count = args.experts.numel();
  launch(one_each(stream, count), even_choices_kernel, pointer<std::int32_t>(args.experts), count,
         args.first_row * args.experts.dim(1), args.num_experts);
}

void regroup_rows(Stream stream, const RegroupRows& args, const Tensor& segments) {
  const Index sources = args.sources, rows = args.arrived_at.numel();
  const SegmentCounts counts{pointer<const std::int64_t>(args.counts), args.counts ? args.counts.dim(1) : 0, args.first,
                             args.local_experts, args.each};
  auto* begins = pointer<std::int64_t>(segments);
  auto *row_of = pointer<std::int32_t>(args.row_of), *arrived_at = pointer<std::int32_t>(args.arrived_at);
  launch(one_each(stream, rows), clear_maps_kernel, row_of, arrived_at, rows);
  launch({stream, 1, 1}, find_segments_kernel, counts, sources, begins);
  launch({stream, sources * args.local_experts, kThreads}, regroup_rows_kernel, counts,
         static_cast<const std::int64_t*>(begins), rows, row_of, arrived_at);
}

}  // namespace megalith::ops::cuda
