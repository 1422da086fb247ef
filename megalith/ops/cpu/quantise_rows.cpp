#include <algorithm>

#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/quantise_squares.h"
#include "megalith/ops/quantise_rows_kernels.h"

namespace megalith::ops::cpu {

void quantise_rows(const QuantiseRows& args) {
  const Index rows = args.pair_of.numel(), hidden = args.x.dim(1);
  const auto* const pair_of = args.pair_of.data<std::int32_t>();
  dispatch_float(args.x.dtype(), "quantise_rows", [&]<class T>() {
    const T* const x = args.x.data<T>();
    T* const out = args.rows ? args.rows.data<T>() : nullptr;
    quantise_squares({rows, hidden, args.straight, args.turned}, [&](Square& square) {
      if (pair_of[square.row] == kUnusedRow) {
        square.live_rows = 0;
        return;
      }
      const T zeros[kScaleBlock] = {};
      for (Index r = 0; r < square.rows; ++r) {
        const Index pair = pair_of[square.row + r];
        const T* const from = pair < 0 ? zeros : x + pair / args.top_k * hidden + square.column;
        for (Index c = 0; c < square.columns; ++c) square.x[r][c] = static_cast<float>(from[c]);
        if (out != nullptr) std::copy_n(from, square.columns, out + (square.row + r) * hidden + square.column);
      }
    });
  });
}

}  // namespace megalith::ops::cpu
