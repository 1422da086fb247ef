#pragma once
#include "megalith/ops/attention_decode.h"

namespace megalith::ops::cuda {

void cache_append(Stream stream, const CacheAppend& args);
void attention_decode(Stream stream, const AttentionDecode& args);

}  // namespace megalith::ops::cuda
