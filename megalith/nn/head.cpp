#include "megalith/nn/head.h"

#include "megalith/base/error.h"

namespace megalith::nn {

Tensor Head::outputs(Exec& /*ex*/, const Tensor& /*x*/, Saved& /*saved*/) const {
  throw InternalError("[Head::outputs] the head has no logits of every row: only a language model has them");
}

Tensor Head::score(Exec& /*ex*/, const Microbatch& /*microbatch*/, const Tensor& /*x*/, const HeadInputs& /*inputs*/,
                   const Tensor& /*best_ids*/) const {
  throw InternalError("[Head::score] the head has no logits of every row: only a language model has them");
}

}  // namespace megalith::nn
