#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/expert_choices_kernels.h"

namespace megalith::ops::cpu {

void place_choices(const PlaceChoices& args) {
  const auto* experts = args.experts.data<std::int32_t>();
  auto* destinations = args.destinations.data<std::int32_t>();
  for (Index pair = 0; pair < args.experts.numel(); ++pair) {
    for (Index slice = 0; slice < args.ranks.slices; ++slice) {
      const std::int32_t expert = experts[pair];
      destinations[pair * args.ranks.slices + slice] =
          expert < 0 ? -1 : static_cast<std::int32_t>(args.ranks.destination(expert, slice));
    }
  }
}

void repeat_choices(const Tensor& of_choices, const Tensor& of_slices) {
  dispatch_wide(of_choices.dtype(), "repeat_choices", [&]<class T>() {
    const T* from = of_choices.data<T>();
    T* to = of_slices.data<T>();
    const Index slices = of_slices.dim(1) / of_choices.dim(1);
    for (Index pair = 0; pair < of_choices.numel(); ++pair) std::fill_n(to + pair * slices, slices, from[pair]);
  });
}

void sum_slices(const Tensor& of_slices, const Tensor& of_choices) {
  dispatch_wide(of_choices.dtype(), "sum_slices", [&]<class T>() {
    const T* from = of_slices.data<T>();
    T* to = of_choices.data<T>();
    const Index slices = of_slices.dim(1) / of_choices.dim(1);
    for (Index pair = 0; pair < of_choices.numel(); ++pair) {
      T sum = 0;
      for (Index slice = 0; slice < slices; ++slice) sum += from[pair * slices + slice];
      to[pair] = sum;
    }
  });
}

void even_choices(const EvenChoices& args) {
  auto* experts = args.experts.data<std::int32_t>();
  const Index first = args.first_row * args.experts.dim(1), stride = even_stride(args.num_experts, args.experts.dim(1));
  for (Index pair = 0; pair < args.experts.numel(); ++pair)
    experts[pair] = static_cast<std::int32_t>((first + pair) % args.num_experts * stride % args.num_experts);
}

/// segments: for every (source, local expert) the first row by source, then the first row by expert.
void regroup_rows(const RegroupRows& args, const Tensor& segments) {
  const Index sources = args.sources, local = args.local_experts, rows = args.row_of.numel();
  const auto* counts = args.counts ? args.counts.data<std::int32_t>() : nullptr;
  const Index columns = args.counts ? args.counts.dim(1) : 0;
  const auto count = [&](Index source, Index expert) {
    return counts == nullptr ? args.each : Index{counts[source * columns + args.first + expert]};
  };
  auto* arrived = segments.data<std::int64_t>();
  std::int64_t* by_expert = arrived + sources * local;
  Index total = 0;
  for (Index s = 0; s < sources; ++s) {
    for (Index l = 0; l < local; ++l) {
      if (count(s, l) < 0 || total + count(s, l) > rows)
        throw InputError(str("[regroup_rows] counts[", s, ", ", args.first + l, "] = ", count(s, l),
                             ": must be at least 0, and there are ", rows, " rows in all"));
      arrived[s * local + l] = total;
      total += count(s, l);
    }
  }
  auto *begin = args.groups.begin.data<std::int32_t>(), *of_group = args.groups.rows.data<std::int32_t>();
  Index end = 0;
  for (Index l = 0; l < local; ++l) {
    begin[l] = static_cast<std::int32_t>(end);
    Index next = end;
    for (Index s = 0; s < sources; ++s) {
      by_expert[s * local + l] = next;
      next += count(s, l);
    }
    of_group[l] = static_cast<std::int32_t>(next - end);
    end += round_up(next - end, args.groups.alignment);
  }
  auto *row_of = args.row_of.data<std::int32_t>(), *arrived_at = args.arrived_at.data<std::int32_t>();
  std::fill(row_of + total, row_of + rows, kUnusedRow);
  std::fill_n(arrived_at, end, kZeroRow);
  std::fill(arrived_at + end, arrived_at + args.arrived_at.numel(), kUnusedRow);
  for (Index s = 0; s < sources; ++s) {
    for (Index l = 0; l < local; ++l) {
      for (Index i = 0; i < count(s, l); ++i) {
        const Index from = arrived[s * local + l] + i, to = by_expert[s * local + l] + i;
        row_of[from] = static_cast<std::int32_t>(to);
        arrived_at[to] = static_cast<std::int32_t>(from);
      }
    }
  }
}

}  // namespace megalith::ops::cpu
