#pragma once
#include "megalith/ops/attention_decode.h"

namespace megalith::ops {

// qkv: (T, G, A/G + 2, D) : ((A + 2G) D, (A/G + 2) D, D, 1), per kv head its q heads, its k, its v.
// out: (T, A, D) : (A D, D, 1).  keys, values: (B, G, C, D) : (G C D, C D, D, 1).  positions: (T) : (1).

namespace cpu {
void cache_append(const CacheAppend& args);
void attention_decode(const AttentionDecode& args);
}  // namespace cpu

namespace cuda {
void cache_append(Stream stream, const CacheAppend& args);
void attention_decode(Stream stream, const AttentionDecode& args);
}  // namespace cuda

}  // namespace megalith::ops
