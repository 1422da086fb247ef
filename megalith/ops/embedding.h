#pragma once
#include "megalith/ops/elementwise.h"

namespace megalith::ops {

/// y[t] = table[ids[t] - first_id] if this rank owns the id, else 0.
///   ids [T] i32 (global), table [V/tp, H] with ids [first_id, first_id + V/tp), y [T, H].
/// On the CPU throws InputError for an id outside [0, vocab_size).
struct EmbeddingForward {
  Tensor ids, table;  // in
  Tensor y;           // out
  Index first_id = 0;
  Index vocab_size = 0;
};
void embedding_forward(Exec& ex, const EmbeddingForward& args);

/// table_grad[ids[t] - first_id] += dy[t] for owned ids, t ascending: the same bits for any number of threads.
struct EmbeddingBackward {
  Tensor ids, dy;     // in   [T] i32, [T, H]
  Tensor table_grad;  // out, accumulated  [V/tp, H]
  Index first_id = 0;
};
void embedding_backward(Exec& ex, const EmbeddingBackward& args);

/// y = dropout(x + position[(first_row + t) % S]), with the first_row of the dropout.
///   x, y [T, H], position [S, H]. y may be x.
struct AddPosition {
  Tensor x, position;  // in
  Tensor y;            // out
  Dropout dropout;
};
void add_position(Exec& ex, const AddPosition& args);

/// position_grad[s] += sum over the samples b of dy[b*S + s], b ascending.  dy [B*S, H], position_grad [S, H]
void position_backward(Exec& ex, const Tensor& dy, const Tensor& position_grad);

}  // namespace megalith::ops
