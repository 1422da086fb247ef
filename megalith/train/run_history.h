#pragma once
#include <string>
#include <string_view>

#include "megalith/base/types.h"

namespace megalith::train {

inline constexpr const char* kHistoryName = "history.jsonl";

/// A line of OUT/history.jsonl, what happened to a run: {"event":"resume","step":200,"time":"2026-11-28T17:31:05Z",
/// "text":"..."}. Events: start, resume, warning, stop (on request), end, fault. The step is the one at which the run
/// stood. Lines stay; a run that resumes drops those of metrics.jsonl after its step.
std::string history_line(std::string_view event, Index step, std::string_view text);

}  // namespace megalith::train
