#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/corpus/dedup.h"

namespace megalith::corpus {

/// The name of a format, as in --input-format.
const char* format_name(data::CorpusFormat format);
/// Adds `seconds` and `text_mb_per_s` (null where no time was measured). Only a report's numbers of these names, and
/// its member `run`, may differ between runs of one command on the same inputs.
void put_time(nlohmann::ordered_json& json, double seconds, std::uint64_t text_bytes);

/// The settings on which dedup() depends, by name, for the work folder and the report. Reads a little of every input
/// file.
nlohmann::ordered_json settings_of(const DedupOptions& options, io::Fs& fs);

/// report.json of a command: its settings, its counts in all and per input file, seconds per stage.
nlohmann::ordered_json report_of(const DedupOptions& options, const DedupReport& report,
                                 const nlohmann::ordered_json& settings);

}  // namespace megalith::corpus
