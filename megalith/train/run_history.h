#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::train {

inline constexpr const char* kHistoryName = "history.jsonl";

/// A line of OUT/history.jsonl, what happened to a run: {"event":"resume","step":200,"time":"2026-11-28T17:31:05Z",
/// "text":"..."}. Events of a training: start, resume, warning, stop (on request), end, fault; of the program that
/// supervises it: launch, exit. The step is the one at which the run stood. Lines stay; a run that resumes drops those
/// of metrics.jsonl after its step. `members`: more of them, each with a comma in front.
std::string history_line(std::string_view event, Index step, std::string_view text, std::string_view members = {});

/// A text as JSON has it, with quotation marks.
std::string json_text(std::string_view text);

/// What a process that trained has left in OUT.
struct Attempt {
  std::optional<Index> first_step = {};  ///< the first one that it could complete; none: it did not come so far
  std::optional<Index> last_step = {};   ///< the last one with a line in metrics.jsonl, or the one before its first
  std::string reason = {};               ///< text of its last fault, stop or end; empty: it could not write one
};

/// The size of OUT/history.jsonl, from which on the lines of a next process will stand; 0 if there is none.
std::uint64_t history_bytes(io::Fs& fs, const io::Path& out);
/// Of the process whose lines begin there, which has ended. Lines that were cut are passed over. Throws IoError.
Attempt read_attempt(io::Fs& fs, const io::Path& out, std::uint64_t begin);

/// Appends a line to OUT/history.jsonl, also behind a line that was cut. Throws IoError.
void add_history_line(io::Fs& fs, const io::Path& out, const std::string& line);

}  // namespace megalith::train
