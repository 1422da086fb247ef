#include "megalith/eval/choice_data.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/input_files.h"
#include "megalith/eval/whole_text.h"
#include "megalith/io/checksum.h"
#include "megalith/io/file_problems.h"

namespace megalith::eval {
namespace {

/// Reads the files of a task, and keeps their texts.
class ChoiceReading {
 public:
  ChoiceReading(io::Fs& fs, const ChoiceFiles& files, ChoiceData& data) : fs_(fs), files_(files), data_(data) {}

  /// PIQA's labels are in the file `labels`; if that is empty, in NAME-labels.lst beside NAME.jsonl, if it is there.
  ChoiceSource source(const std::string& file, std::string text, const std::string& labels) {
    ChoiceSource found{.data = {keep(std::move(text)), file}};
    if (files_.options.form != ChoiceForm::piqa) return found;
    const io::Path beside = io::Path(file).parent_path() / (io::Path(file).stem().string() + "-labels.lst");
    const std::string name = !labels.empty() ? labels : fs_.exists(beside) ? beside.string() : "";
    if (!name.empty()) found.labels = {keep(read("labels", "--labels", name)), keep(name)};
    return found;
  }
  /// A file that `option` names. Its checksum is kept under `use`.
  std::string read(const char* use, const char* option, const std::string& file) {
    data::require_file(fs_, file, setting(option));
    const ScannedText scanned = scan_text(fs_, file);
    data_.more_files.push_back({use, file, scanned.checksum.hex()});
    return whole(file, scanned);
  }
  std::string whole(const std::string& file, const ScannedText& scanned) const {
    return read_whole_text(fs_, file, scanned, {.max_bytes = files_.max_bytes, .setting = files_.limit_setting});
  }
  std::string setting(const char* option) const {
    const bool is_command = files_.data_setting == ChoiceFiles().data_setting;
    return is_command ? option : str(files_.data_setting, ", ", option);
  }

  /// The subjects of a folder of MMLU's files, with their examples.
  std::vector<ChoiceSubject> subjects() {
    const std::vector<io::Path> tests = tables_of(files_.data, "--data");
    std::vector<io::Path> examples;
    if (files_.options.shots > 0) examples = tables_of(files_.options.shots_data, "--shots-data");
    io::FileProblems problems;
    std::vector<ChoiceSubject> found;
    io::RunningChecksum of_tests, of_examples;
    for (const io::Path& file : tests) {
      ChoiceSubject& subject = found.emplace_back(mmlu_subject(file.string()));
      const bool is_known = std::ranges::count(found, subject.name, &ChoiceSubject::name) > 1;
      if (is_known)
        problems.add(str("[", file.string(), "] is a second file of the subject ", subject.name,
                         ": name the folder of one split"));
      subject.source.data = read_of_folder(file, of_tests);
      if (files_.options.shots == 0) continue;
      subject.shots.count = files_.options.shots;
      const auto own =
          std::ranges::find(examples, subject.name, [](const io::Path& one) { return mmlu_subject(one.string()); });
      if (own == examples.end())
        problems.add(str("[", files_.options.shots_data, "] has no file of the subject ", subject.name,
                         ": must have examples for ", file.string(), ", as ", subject.name, "_dev.csv"));
      else
        subject.shots.source.data = read_of_folder(*own, of_examples);
    }
    problems.throw_if_any(files_.data);
    data_.checksum = of_tests.value().hex();
    if (files_.options.shots > 0)
      data_.more_files.push_back({"shots_data", files_.options.shots_data, of_examples.value().hex()});
    return found;
  }

 private:
  std::string_view keep(std::string text) { return kept_.emplace_back(std::move(text)); }
  /// The .csv files of a folder, also packed ones, in the order of their names.
  std::vector<io::Path> tables_of(const std::string& folder, const char* option) const {
    if (!fs_.is_dir(folder))
      throw InputError(str("[", setting(option), "] ", folder, ": must be a folder, as --data is one"));
    std::vector<io::Path> tables;
    for (const std::string& name : fs_.list(folder)) {
      const bool is_table = name.find(".csv") != std::string::npos && !name.starts_with('.');
      if (is_table && !fs_.is_dir(io::Path(folder) / name)) tables.push_back(io::Path(folder) / name);
    }
    if (tables.empty())
      throw InputError(
          str("[", setting(option), "] ", folder, ": has no .csv file: must have MMLU's, one per subject"));
    return tables;
  }
  SourceText read_of_folder(const io::Path& file, io::RunningChecksum& checksum) {
    const ScannedText scanned = scan_text(fs_, file.string());
    checksum.update(str(file.filename().string(), ' ', scanned.checksum.hex(), '\n'));
    return {keep(whole(file.string(), scanned)), keep(file.string())};
  }

  io::Fs& fs_;
  const ChoiceFiles& files_;
  ChoiceData& data_;
  std::deque<std::string> kept_;
};

}  // namespace

ChoiceData read_choice_data(io::Fs& fs, const ChoiceFiles& files, const tokenizer::Tokenizer& tokenizer, Index window) {
  const ChoiceOptions& options = files.options;
  ChoiceData data;
  ChoiceReading reading(fs, files, data);
  if (options.form == ChoiceForm::mmlu && fs.is_dir(files.data)) {
    data.set = choice_set(options.form, reading.subjects(), tokenizer, window);
    return data;
  }
  data::require_file(fs, files.data, files.data_setting);
  const ScannedText scanned = scan_text(fs, files.data);
  data.checksum = scanned.checksum.hex();
  const ChoiceSource source = reading.source(files.data, reading.whole(files.data, scanned), options.labels);
  ChoiceShots shots{.count = options.shots};
  if (shots.count > 0) {
    const std::string& file = options.shots_data;
    shots.source = reading.source(file, reading.read("shots_data", "--shots-data", file), "");
  }
  data.set = choice_set(options.form, source, tokenizer, window, shots);
  return data;
}

}  // namespace megalith::eval
