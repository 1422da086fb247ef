#pragma once
#include "megalith/ops/attention.h"

namespace megalith::ops::cpu {

template <class T>
void attention_forward(const AttentionForward& args);
template <class T>
void attention_backward(const AttentionBackward& args);

}  // namespace megalith::ops::cpu
