#include "apps/program/terminal.h"

#include <cstdlib>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

namespace megalith::apps {

int terminal_columns() {
  const char* const kind = std::getenv("TERM");
  if (isatty(STDERR_FILENO) == 0 || (kind != nullptr && std::string_view(kind) == "dumb")) return 0;
  winsize window{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  return known ? window.ws_col : 80;
}

}  // namespace megalith::apps
