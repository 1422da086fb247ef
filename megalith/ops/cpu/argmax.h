#pragma once
#include "megalith/ops/argmax.h"

namespace megalith::ops::cpu {

template <class T>
void argmax(const Argmax& args);
void argmax_of_shards(const ArgmaxOfShards& args);

}  // namespace megalith::ops::cpu
