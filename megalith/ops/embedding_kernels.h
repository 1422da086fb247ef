#pragma once
#include "megalith/ops/embedding.h"

namespace megalith::ops {

// ids: (T) : (1).  table, table_grad: (V/tp, H) : (H, 1).  x, y, dy: (T, H) : (H, 1), of whole samples (B, S, H).
// position, position_grad: (S, H) : (H, 1).  scratch: bytes.

namespace cpu {
/// Throws InputError for an id outside [0, vocab_size).
void embedding_forward(const EmbeddingForward& args);
void embedding_backward(const EmbeddingBackward& args);
void add_position(const AddPosition& args);
void position_backward(const Tensor& dy, const Tensor& position_grad);
}  // namespace cpu

namespace cuda {
void embedding_forward(Stream stream, const EmbeddingForward& args);

/// The layout of the scratch of embedding_backward, in bytes. Held tokens are sorted by (id, t) and the sorted list is
/// cut into windows. A window leaves the sums of its ids that reach into a neighbour in `sums`.
struct EmbeddingScratch {
  static constexpr Index kWindow = 64;        // rows added one after the other
  static constexpr Index kLargeBucket = 512;  // tokens of one id from which on they are sorted another way
  Index starts, slots, buckets, sorted, large, sums, bytes;

  EmbeddingScratch(Index tokens, Index held, Index hidden) {
    bytes = 0;
    const auto take = [this](Index elements) {  // elements of four bytes
      const Index offset = bytes;
      bytes += round_up(4 * elements, 256);
      return offset;
    };
    starts = take(held + 1);                  // i32: start of each id's bucket; the last is the number of held tokens
    slots = take(tokens);                     // i32: place of token t in its bucket, in order of arrival
    buckets = take(tokens);                   // i32: tokens by id, in order of arrival
    sorted = take(tokens);                    // i32: tokens by id, ascending
    large = take(1 + tokens / kLargeBucket);  // i32: how many ids have a large bucket, and those ids in any order
    sums = take(ceil_div(tokens, kWindow) * 2 * hidden);  // f32 [windows, 2, H]: first id's, last id's
  }
};
inline Index embedding_backward_scratch_bytes(Index tokens, Index held, Index hidden) {
  return EmbeddingScratch(tokens, held, hidden).bytes;
}
/// table_grad f32; scratch of that many bytes, aligned to 16.
void embedding_backward(Stream stream, const EmbeddingBackward& args, const Tensor& scratch);

void add_position(Stream stream, const AddPosition& args);
/// position_grad f32
void position_backward(Stream stream, const Tensor& dy, const Tensor& position_grad);
}  // namespace cuda

}  // namespace megalith::ops
