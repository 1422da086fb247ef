#pragma once
#include <cstdio>
#include <functional>
#include <string>

#include "megalith/train/metrics.h"

namespace megalith::train {

/// The output for a person who watches. On a terminal: one line that is rewritten, cut to the window; a line stays for
/// the first step of a run, for every `interval` steps and for the last. Elsewhere: only the lines that stay, uncut.
class ProgressLine {
 public:
  /// Where lines go. The number of columns is read for every line, because windows change.
  struct Screen {
    std::FILE* file = stderr;
    std::function<int()> columns = [] { return 0; };  ///< of the terminal; 0: none
  };
  ProgressLine(Index last_step, Index interval, Screen screen)
      : last_step_(last_step), interval_(interval), screen_(std::move(screen)) {}
  void step(const StepMetrics& metrics);
  /// A separate line, above the progress line. Not cut.
  void note(const std::string& text);

 private:
  /// Steps and their time.
  struct Span {
    double steps = 0, seconds = 0;
  };
  std::string text(const StepMetrics& metrics, std::size_t columns) const;

  Index last_step_, interval_;
  Screen screen_;
  bool open_ = false, any_ = false;
  Span interval_before_, since_;  ///< of the lines that stay; since the last of them
};

}  // namespace megalith::train
