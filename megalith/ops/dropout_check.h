#pragma once
#include <string_view>

#include "megalith/ops/elementwise.h"

namespace megalith::ops {

/// Throws ShapeError("[op.dropout...] ...") unless the probability is in [0, 1) and, where it is above 0, the StepState
/// is there.
void check_dropout(const Dropout& dropout, std::string_view op);

/// For ops on [T, H]: dropout.seq_len must divide the rows. Nothing to check when nothing is dropped.
void check_dropout_rows(const Dropout& dropout, Index rows, std::string_view op);

}  // namespace megalith::ops
