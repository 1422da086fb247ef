#pragma once
#include "megalith/runtime/exec.h"

namespace megalith::ops {

// Attention of new tokens to all tokens before them, whose keys and values are kept in a cache:
//   keys, values [B, G, C, D]: of each of B sequences and of the G kv heads of this rank, C positions of D numbers. The
//   positions of a head are contiguous, so that a query reads its keys as one stream.
//   qkv [T, (A + 2G) D] as in attention.h, of T = B n new tokens, the n of a sequence one after the other.
//   positions [T] i32: where each token stands in its sequence, from 0 to below C.
// The host never reads positions, so a captured graph stays valid for others. A position outside the cache is an
// InputError on the CPU. On a GPU nothing is written to the cache for such a token, and its row of `out` is 0.

/// Copies k and v of every token to the cache.
struct CacheAppend {
  Tensor qkv, positions;  // in
  Tensor keys, values;    // out, at the positions of the tokens alone
  Index num_heads = 0;    ///< A of this rank
};
void cache_append(Exec& ex, const CacheAppend& args);

/// out [T, A D] = softmax(q K^T / sqrt(D)) V over the cached positions 0 .. positions[t] of the token's sequence. They
/// must include the token's own k and v (cache_append). So a token attends to the new ones before it. Sums are f32 (f64
/// for f64). Bits do not depend on the number of threads, on B, n and C, or on the other rows. Memory traffic: the
/// visible part of the cache, once for every new token and up to 8 of its q heads.
struct AttentionDecode {
  Tensor qkv, positions, keys, values;  // in
  Tensor out;                           // out
  Index num_heads = 0;                  ///< A of this rank
};
void attention_decode(Exec& ex, const AttentionDecode& args);

inline constexpr Index kMaxDecodeHeadDim = 1024;  ///< on the CPU

}  // namespace megalith::ops
