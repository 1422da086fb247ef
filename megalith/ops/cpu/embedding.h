#pragma once
#include "megalith/ops/embedding.h"

namespace megalith::ops::cpu {

/// Throws InputError for an id outside [0, vocab_size).
template <class T>
void embedding_forward(const EmbeddingForward& args);
template <class T>
void embedding_backward(const EmbeddingBackward& args);
template <class T>
void add_position(const AddPosition& args);
template <class T>
void position_backward(const Tensor& dy, const Tensor& position_grad);

}  // namespace megalith::ops::cpu
