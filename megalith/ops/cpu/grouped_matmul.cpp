#include <algorithm>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/grouped_matmul_kernels.h"

namespace megalith::ops::cpu {
namespace {

/// Calls body(row) for every row of a group, on the team.
template <class Body>
void for_rows_of_groups(Index groups, const HostGroups& host, Index columns, const Body& body) {
  const Index end = groups == 0 ? 0 : host.begin[groups - 1] + host.rows[groups - 1];
  parallel_rows(end, columns, [&](Index first, Index count) {
    Index g = std::upper_bound(host.begin, host.begin + groups, first) - host.begin - 1;
    for (Index row = first; row < first + count; ++row) {
      while (g + 1 < groups && row >= host.begin[g + 1]) ++g;
      if (g >= 0 && row < host.begin[g] + host.rows[g]) body(row);
    }
  });
}

/// The activation of a z [M, columns] with h [M, units].
template <class T>
struct ActivationKernels {
  explicit ActivationKernels(bool is_gated)
      : width(is_gated ? 2 : 1),
        forward(is_gated ? kernels<T>().elementwise.swiglu : kernels<T>().elementwise.gelu),
        backward(is_gated ? kernels<T>().elementwise.swiglu_backward : kernels<T>().elementwise.gelu_backward) {}

  Index width;  ///< elements of z for one of h
  void (*forward)(const T* z, T* h, Index n);
  void (*backward)(const T* z, const T* dh, T* dz, Index n);
};

}  // namespace

void activate_groups(const GroupedActivated& args, const HostGroups& groups) {
  dispatch_float(args.z.dtype(), "grouped_matmul_activated", [&]<class T>() {
    const Index units = args.h.dim(1), columns = args.z.dim(1);
    const ActivationKernels<T> activation(columns != units);
    const T* z = args.z.data<T>();
    T* h = args.h.data<T>();
    for_rows_of_groups(args.groups.count(), groups, columns,
                       [&](Index row) { activation.forward(z + row * columns, h + row * units, units); });
  });
}

void activate_groups_backward(const GroupedActivatedInputGrad& args, const HostGroups& groups) {
  dispatch_float(args.z.dtype(), "grouped_matmul_activated_input_grad", [&]<class T>() {
    using A = Arithmetic<T>;
    constexpr Index kUnits = 512;  // of a piece, for which h and p dh are made on the stack
    const Index units = args.ph.dim(1), columns = args.z.dim(1);
    const ActivationKernels<T> activation(columns != units);
    const T* z = args.z.data<T>();
    T *dz = args.dz.data<T>(), *ph = args.ph.data<T>();
    const A* p = args.p.data<A>();
    A* dp = args.dp.data<A>();
    for_rows_of_groups(args.groups.count(), groups, columns, [&](Index row) {
      T h[kUnits], weighted[kUnits];
      A sum = 0;
      for (Index first = 0; first < units; first += kUnits) {
        const Index count = std::min(kUnits, units - first), at = row * columns + first * activation.width;
        T* const dh = ph + row * units + first;
        activation.forward(z + at, h, count);
        sum += kernels<T>().gemm.dot(dh, h, count);
        kernels<T>().elementwise.scaled(dh, p[row], weighted, count);
        activation.backward(z + at, weighted, dz + at, count);
        kernels<T>().elementwise.scaled(h, p[row], dh, count);
      }
      dp[row] = sum;
    });
  });
}

}  // namespace megalith::ops::cpu
