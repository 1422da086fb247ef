#pragma once
#include "megalith/ops/capacity.h"

namespace megalith::ops::cuda {

void drop_pairs(Stream stream, const DropPairs& args);

}  // namespace megalith::ops::cuda
