#pragma once
#include <string_view>

#include "megalith/ops/elementwise.h"

namespace megalith::ops {

/// Throws ShapeError("[op.dropout...] ...") unless the probability is in [0, 1) and, where it is above 0, the StepState
/// is there.
void check_dropout(const Dropout& dropout, std::string_view op);

/// For ops on [T, H]: throws ShapeError where something is dropped and dropout does not tell the seq_len.
void check_dropout_rows(const Dropout& dropout, std::string_view op);

}  // namespace megalith::ops
