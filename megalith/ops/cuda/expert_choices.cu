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

__global__ void even_choices_kernel(std::int32_t* experts, Index count, Index first, Index num_experts, Index stride) {
  const Index i = number_of_thread();
  if (i < count) experts[i] = static_cast<std::int32_t>((first + i) % num_experts * stride % num_experts);
}

/// The numbers of rows from a source for a local expert.
struct SegmentCounts {
  const std::int32_t* counts;  // null: all are `each`
  Index columns, first, local, each;
  __device__ Index of(Index source, Index expert) const {
    return counts == nullptr ? each : Index{counts[source * columns + first + expert]};
  }
};

/// Where regrouped rows go.
struct RegroupedRows {
  std::int32_t *begin, *of_group, *row_of, *arrived_at;
  Index rows, places, alignment;  // A, M
};

/// One thread: at most a few thousand segments. Counts that are negative or leave the rows are clamped. segments: as on
/// the CPU.
__global__ void find_segments_kernel(SegmentCounts counts, Index sources, RegroupedRows to, std::int64_t* segments) {
  const Index local = counts.local;
  Index total = 0;
  for (Index i = 0; i < sources * local; ++i) {
    segments[i] = total;
    total = min(to.rows, total + max(Index{0}, counts.of(i / local, i % local)));
  }
  const auto count = [&](Index s, Index l) {
    const Index i = s * local + l;
    return (i + 1 < sources * local ? segments[i + 1] : total) - segments[i];
  };
  Index end = 0;
  for (Index l = 0; l < local; ++l) {
    to.begin[l] = static_cast<std::int32_t>(end);
    Index next = end;
    for (Index s = 0; s < sources; ++s) {
      segments[(sources + s) * local + l] = next;
      next += count(s, l);
    }
    to.of_group[l] = static_cast<std::int32_t>(next - end);
    end += (next - end + to.alignment - 1) / to.alignment * to.alignment;
  }
}

__global__ void clear_maps_kernel(RegroupedRows to, Index local) {
  const Index row = number_of_thread();
  const Index last = to.of_group[local - 1];
  const Index end = to.begin[local - 1] + (last + to.alignment - 1) / to.alignment * to.alignment;
  if (row < to.rows) to.row_of[row] = kUnusedRow;
  if (row < to.places) to.arrived_at[row] = row < end ? kZeroRow : kUnusedRow;
}

/// Writes 8 bytes per row.
__global__ void regroup_rows_kernel(SegmentCounts counts, const std::int64_t* segments, RegroupedRows rows) {
  const Index segment = blockIdx.x;
  const Index count = counts.of(segment / counts.local, segment % counts.local);
  const std::int64_t from = segments[segment], to = segments[gridDim.x + segment];
  for (Index i = threadIdx.x; i < count; i += kThreads) {
    if (from + i >= rows.rows) return;
    rows.row_of[from + i] = static_cast<std::int32_t>(to + i);
    rows.arrived_at[to + i] = static_cast<std::int32_t>(from + i);
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
         args.first_row * args.experts.dim(1), args.num_experts, even_stride(args.num_experts, args.experts.dim(1)));
}

void regroup_rows(Stream stream, const RegroupRows& args, const Tensor& segments) {
  const SegmentCounts counts{pointer<const std::int32_t>(args.counts), args.counts ? args.counts.dim(1) : 0, args.first,
                             args.local_experts, args.each};
  const RegroupedRows to{.begin = pointer<std::int32_t>(args.groups.begin),
                         .of_group = pointer<std::int32_t>(args.groups.rows),
                         .row_of = pointer<std::int32_t>(args.row_of),
                         .arrived_at = pointer<std::int32_t>(args.arrived_at),
                         .rows = args.row_of.numel(),
                         .places = args.arrived_at.numel(),
                         .alignment = args.groups.alignment};
  auto* begins = pointer<std::int64_t>(segments);
  launch({stream, 1, 1}, find_segments_kernel, counts, args.sources, to, begins);
  launch(one_each(stream, std::max(to.rows, to.places)), clear_maps_kernel, to, args.local_experts);
  launch({stream, args.sources * args.local_experts, kThreads}, regroup_rows_kernel, counts,
         static_cast<const std::int64_t*>(begins), to);
}

}  // namespace megalith::ops::cuda
