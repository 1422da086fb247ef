#pragma once
#include <string_view>

#include "megalith/ops/elementwise.h"

namespace megalith::ops {

/// Throws ShapeError("[op.dropout...] ...") unless the probability is in [0, 1). One above 0 also needs the StepState.
void check_dropout(const Dropout& dropout, std::string_view op);

/// For ops on [T, H]: throws ShapeError where something is dropped and dropout has no seq_len.
void check_dropout_rows(const Dropout& dropout, std::string_view op);

}  // namespace megalith::ops
