#include "apps/eval/eval_progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "megalith/base/str.h"

#include "apps/program/terminal.h"

namespace megalith::apps {

void EvalProgress::add(Index tokens) {
  ++done_;
  done_tokens_ += tokens;
  const double now = monotonic_s();
  const int columns = terminal_columns();
  if (done_ < passages_ && now - shown_at_ < (columns > 0 ? 0.2 : 30.0)) return;
  shown_at_ = now;
  const double rate = static_cast<double>(done_tokens_) / std::max(now - begun_, 1e-9);
  const auto left = std::llround(static_cast<double>(tokens_ - done_tokens_) / rate);
  const std::string text = str(done_, "/", passages_, " passages  ", static_cast<Index>(rate), " tokens/s  ETA ",
                               left / 60, "m", left % 60, "s");
  std::fprintf(stderr, columns > 0 ? "\r\033[K%.*s%s" : "%.*s%s",
               columns > 0 ? std::max(columns - 1, 1) : static_cast<int>(text.size()), text.c_str(),
               columns > 0 && done_ < passages_ ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace megalith::apps
