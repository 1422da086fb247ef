#include "megalith/nn/vocab_parallel_argmax.h"

#include "megalith/ops/argmax.h"

namespace megalith::nn {

void vocab_parallel_argmax(Exec& ex, const VocabShard& vocab, const comm::Group& tp, const Tensor& logits,
                           const Tensor& ids) {
  const Index rows = logits.dim(0);
  const Tensor own = ex.tensor({rows, 2}, DType::f64);
  ops::argmax(ex, {.logits = logits, .best = own, .first_id = vocab.first_id, .vocab_size = vocab.vocab_size});
  Tensor all = own;
  if (tp.size() > 1) {
    all = ex.tensor({tp.size() * rows, 2}, DType::f64);
    comm::all_gather(ex, tp, own, all).wait(ex);
  }
  ops::argmax_of_shards(ex, {.best = all, .ids = ids});
}

}  // namespace megalith::nn
