#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/corpus/dedup.h"

namespace megalith::corpus {

/// What dedup() depends on, by name: of the work folder and of the report. Reads a little of every input file.
nlohmann::ordered_json settings_of(const DedupOptions& options, io::Fs& fs);

/// report.json of a command: its settings, what was done in all and per input file, seconds per stage.
nlohmann::ordered_json report_of(const DedupOptions& options, const DedupReport& report,
                                 const nlohmann::ordered_json& settings);

}  // namespace megalith::corpus
