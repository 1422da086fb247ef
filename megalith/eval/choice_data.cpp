#include "megalith/eval/choice_data.h"

#include <deque>
#include <utility>

#include "megalith/base/str.h"
#include "megalith/data/input_files.h"
#include "megalith/eval/whole_text.h"

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
  std::string read(const char* use, const char* option, const std::string& file) {
    const bool is_command = files_.data_setting == ChoiceFiles().data_setting;
    data::require_file(fs_, file, is_command ? option : str(files_.data_setting, ", ", option));
    const ScannedText scanned = scan_text(fs_, file);
    data_.more_files.push_back({use, file, scanned.checksum.hex()});
    return whole(file, scanned);
  }
  std::string whole(const std::string& file, const ScannedText& scanned) const {
    return read_whole_text(fs_, file, scanned, {.max_bytes = files_.max_bytes, .setting = files_.limit_setting});
  }

 private:
  std::string_view keep(std::string text) { return kept_.emplace_back(std::move(text)); }

  io::Fs& fs_;
  const ChoiceFiles& files_;
  ChoiceData& data_;
  std::deque<std::string> kept_;
};

}  // namespace

ChoiceData read_choice_data(io::Fs& fs, const ChoiceFiles& files, const tokenizer::Tokenizer& tokenizer, Index window) {
  data::require_file(fs, files.data, files.data_setting);
  const ScannedText scanned = scan_text(fs, files.data);
  ChoiceData data{.set = {}, .checksum = scanned.checksum.hex()};
  ChoiceReading reading(fs, files, data);
  const ChoiceSource source = reading.source(files.data, reading.whole(files.data, scanned), files.options.labels);
  ChoiceShots shots{.count = files.options.shots};
  if (shots.count > 0) {
    const std::string& file = files.options.shots_data;
    shots.source = reading.source(file, reading.read("shots_data", "--shots-data", file), "");
  }
  data.set = choice_set(files.options.form, source, tokenizer, window, shots);
  return data;
}

}  // namespace megalith::eval
