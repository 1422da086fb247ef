#pragma once
#include "megalith/ops/attention_decode.h"

namespace megalith::ops::cpu {

template <class T>
void cache_append(const CacheAppend& args);
template <class T>
void attention_decode(const AttentionDecode& args);

}  // namespace megalith::ops::cpu
