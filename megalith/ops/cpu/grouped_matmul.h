#pragma once
#include "megalith/ops/grouped_matmul.h"

namespace megalith::ops::cpu {

/// Defined in matmul.cpp, whose pieces it is made of.
template <class T>
void grouped_matmul(const GroupedProduct& products);

}  // namespace megalith::ops::cpu
