#pragma once
#include "megalith/ops/capacity.h"

namespace megalith::ops::cpu {

template <class T>
void drop_pairs(const DropPairs& args);

}  // namespace megalith::ops::cpu
