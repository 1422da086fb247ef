#include "megalith/corpus/output_folder.h"

#include <string>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"

namespace megalith::corpus {

nlohmann::json report_settings(io::Fs& fs, const io::Path& report) {
  if (!fs.exists(report) || fs.is_dir(report)) return nullptr;
  const io::MappedFile file = fs.map(report);
  const std::string name = report.string();
  try {
    const nlohmann::json json = io::read_json(file.text(), {.name = name});
    if (json.is_object() && json.contains("settings")) return json["settings"];
  } catch (const InputError&) {  // a foreign file: the folder is refused
  }
  return nullptr;
}

bool is_dry_run(io::Fs& fs, const io::Path& report) {
  const nlohmann::json settings = report_settings(fs, report);
  return settings.is_object() && settings.contains("dry_run") && settings["dry_run"] == true;
}

void require_empty(io::Fs& fs, const io::Path& output) {
  for (const std::string& name : fs.list(output)) {
    if (name == kOutputLock || (name.starts_with('.') && name.ends_with(".tmp"))) continue;
    if (name == kReport && is_dry_run(fs, output / name)) continue;
    throw ConfigError(
        str("--output ", output.string(), " has files (", name, "): name a folder that is empty or absent"));
  }
}

}  // namespace megalith::corpus
