#pragma once

namespace megalith::apps {

/// Columns of the window that standard error is; 0 where it is no terminal that lines can be rewritten on.
int terminal_columns();

}  // namespace megalith::apps
