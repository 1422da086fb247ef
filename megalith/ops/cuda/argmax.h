#pragma once
#include "megalith/ops/argmax.h"

namespace megalith::ops::cuda {

void argmax(Stream stream, const Argmax& args);
void argmax_of_shards(Stream stream, const ArgmaxOfShards& args);

}  // namespace megalith::ops::cuda
