#include "megalith/nn/head.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::nn {

Tensor Head::outputs(Exec& /*ex*/, const Tensor& /*x*/, Saved& /*saved*/) const {
  throw InternalError("[Head::outputs] the head has no logits of every row: only a language model has them");
}

void Head::infer_rows(Exec& /*ex*/, const Microbatch& /*microbatch*/, const Tensor& /*x*/, const HeadInputs& /*inputs*/,
                      const HeadResults& /*results*/) const {
  throw InternalError("[Head::infer_rows] the head has no results about rows");
}

void Head::infer_samples(Exec& /*ex*/, const Microbatch& /*microbatch*/, const Tensor& /*x*/,
                         const HeadInputs& /*inputs*/, const HeadResults& /*results*/) const {
  throw InternalError("[Head::infer_samples] the head has no results about samples");
}

void Head::require_made(const HeadResults& results, ResultOf of, std::initializer_list<Result> made) {
  for (const ResultRow& row : kResults) {
    if (row.of != of || !(results.*row.tensor) || std::ranges::find(made, row.result) != made.end()) continue;
    throw InternalError(str("[Head] result \"", row.name, "\": the head of this model does not make it"));
  }
}

}  // namespace megalith::nn
