#pragma once
#include <nlohmann/json_fwd.hpp>

#include "megalith/io/fs.h"

namespace megalith::corpus {

inline constexpr const char* kReport = "report.json";
/// An OutputLock in the output folder of a running command.
inline constexpr const char* kOutputLock = ".run.lock";

/// The settings of a report; null when there is none.
nlohmann::json report_settings(io::Fs& fs, const io::Path& report);
/// Whether it is the report of a dry run, which the run itself replaces.
bool is_dry_run(io::Fs& fs, const io::Path& report);

/// Throws ConfigError when the output folder has files already. Files of a killed attempt do not count, and neither
/// does the report of a dry run.
void require_empty(io::Fs& fs, const io::Path& output);

}  // namespace megalith::corpus
