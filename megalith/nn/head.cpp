#include "megalith/nn/head.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/rows.h"

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

void put_rows_back(Exec& ex, const TensorParallel& tp, const Microbatch& microbatch, const HeadInputs& inputs,
                   const Tensor& d_rows, const Tensor& d_stream) {
  tp.for_blocks(microbatch, {}, [&](const SubBatch& block, const ops::Dropout& place) {
    const Tensor own_rows = block.of(d_stream);
    const Index count = own_rows.dim(0);
    ops::sum_rows(ex, {.rows = d_rows,
                       .row_of = inputs.row_of.rows(place.first_row, count).reshaped({count, 1}),
                       .weights = {},
                       .y = own_rows});
  });
}

}  // namespace megalith::nn
