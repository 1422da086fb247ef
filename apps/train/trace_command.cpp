#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/report/trace_waits.h"

#include "apps/program/command.h"

namespace megalith::apps {
namespace {

/// The traces that a path names: itself, or the files of a folder that are traces.
std::vector<io::Path> traces_at(io::Fs& fs, const std::string& path) {
  if (!fs.exists(path)) throw InputError(str('[', path, "] there is no such file or folder", io::looked_for_in(path)));
  if (!fs.is_dir(path)) return {path};
  std::vector<io::Path> found;
  for (const std::string& name : fs.list(path)) {
    const io::Path file = io::Path(path) / name;
    if (name.ends_with(".json") && !fs.is_dir(file) && is_trace(fs.map(file).text())) found.push_back(file);
  }
  if (found.empty())
    throw InputError(str('[', path, "] holds no trace; megalith train ... --trace ",
                         (io::Path(path) / "trace.json").string(), " writes one"));
  return found;
}

void print_waits(const std::string& path, const std::string& format) {
  const std::shared_ptr<io::Fs> fs = io::retrying_fs(io::posix_fs());
  for (const io::Path& file : traces_at(*fs, path)) {
    const TraceWaits waits = trace_waits(read_trace(fs->map(file).text(), file.string()));
    const std::string text = format == "json" ? waits_json(waits, file.string()) : waits_text(waits, file.string());
    std::fputs(text.c_str(), stdout);
  }
}

}  // namespace

void add_trace(CLI::App& program) {
  struct Options {
    std::string path, format = "text";
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "trace",
      "Print what each rank waited for in the steps of a trace, and which rank, stage or call holds the step up");
  command->add_option("path", options->path, "A file that train --trace has written, or a folder of such files")
      ->required();
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options] { print_waits(options->path, options->format); });
}

}  // namespace megalith::apps
