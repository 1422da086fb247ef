#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/cpu/dropout.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/embedding_kernels.h"

namespace megalith::ops::cpu {

void embedding_forward(const EmbeddingForward& args) {
  dispatch_float(args.table.dtype(), "embedding_forward", [&]<class T>() {
    const Index tokens = args.y.dim(0), hidden = args.y.dim(1), held = args.table.dim(0);
    const std::int32_t* ids = args.ids.data<std::int32_t>();
    const T* table = args.table.data<T>();
    T* y = args.y.data<T>();
    for (Index t = 0; t < tokens; ++t) {
      if (ids[t] >= 0 && ids[t] < args.vocab_size) continue;
      throw InputError(
          str("[embedding] ids[", t, "] = ", ids[t], ": must be in [0, ", args.vocab_size, "), the vocabulary"));
    }
    parallel_rows(tokens, hidden, [&](Index begin, Index count) {
      for (Index t = begin; t < begin + count; ++t) {
        const Index row = ids[t] - args.first_id;
        if (row >= 0 && row < held) {
          std::copy_n(table + row * hidden, hidden, y + t * hidden);
        } else {
          std::fill_n(y + t * hidden, hidden, T{});
        }
      }
    });
  });
}

/// The cut is by columns. Every task walks all tokens in order, so the sums do not depend on the cut.
void embedding_backward(const EmbeddingBackward& args) {
  dispatch_float(args.dy.dtype(), "embedding_backward", [&]<class T>() {
    constexpr Index kColumns = 64;
    const Index tokens = args.dy.dim(0), hidden = args.dy.dim(1), held = args.table_grad.dim(0);
    const std::int32_t* ids = args.ids.data<std::int32_t>();
    const T* dy = args.dy.data<T>();
    auto* grad = args.table_grad.data<Arithmetic<T>>();
    const auto add_rows = kernels<T>().elementwise.add_rows;
    parallel_pieces(hidden, kColumns, tokens * hidden, [&](Index begin, Index count) {
      for (Index t = 0; t < tokens; ++t) {
        const Index row = ids[t] - args.first_id;
        if (row < 0 || row >= held) continue;
        add_rows(dy + t * hidden + begin, 1, count, grad + row * hidden + begin);
      }
    });
  });
}

void add_position(const AddPosition& args) {
  dispatch_float(args.x.dtype(), "add_position", [&]<class T>() {
    const Index hidden = args.x.dim(1), seq_len = args.position.dim(0);
    const T *x = args.x.data<T>(), *position = args.position.data<T>();
    T* y = args.y.data<T>();
    const auto dropout = resolve(args.dropout);
    const auto row = kernels<T>().elementwise.add_dropout;
    const Index first_row = args.dropout.first_row;
    parallel_rows(args.x.dim(0), hidden, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        const Index at = r * hidden;
        row(x + at, position + (first_row + r) % seq_len * hidden, y + at, hidden, dropout ? &dropout->stream : nullptr,
            dropout ? dropout->element_at(seq_len, hidden, at) : 0);
      }
    });
  });
}

void position_backward(const Tensor& dy, const Tensor& position_grad) {
  dispatch_float(dy.dtype(), "position_backward", [&]<class T>() {
    const Index seq_len = position_grad.dim(0), hidden = position_grad.dim(1), rows = dy.dim(0);
    const auto add_rows = kernels<T>().elementwise.add_rows;
    parallel_for(seq_len, dy.numel(), [&](Index s) {
      auto* sum = position_grad.data<Arithmetic<T>>() + s * hidden;
      for (Index r = s; r < rows; r += seq_len) add_rows(dy.data<T>() + r * hidden, 1, hidden, sum);
    });
  });
}

}  // namespace megalith::ops::cpu
