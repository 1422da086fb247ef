#pragma once

namespace megalith::apps {

/// Columns of the terminal on standard error; 0 if it is none on which lines can be rewritten.
int terminal_columns();

}  // namespace megalith::apps
