#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/eval/figures.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// Results of examples in a file of JSON lines, so that an interrupted evaluation can go on: a line that names the
/// evaluation, then a line for each example in the order in which they are computed. Numbers read back as they were.
/// Each line ends with a checksum of itself and of the evaluation's name: what somebody has changed, or has copied from
/// another evaluation, is no result.
class ExampleFile {
 public:
  /// An example's number, and its result.
  using Numbered = std::pair<Index, eval::ExampleResult>;
  struct Found {
    std::vector<Numbered> done{};  ///< each example once
    Index changed_lines = 0;       ///< whose checksum is another one; of a crash the line that was cut
  };

  /// What an existing file has of the evaluation that `identity` names. Throws InputError, naming file and line, for a
  /// file of another evaluation and for one that no evaluation has written: a first line that was changed is neither
  /// where it or another line shows that the file is of this one. Nothing is read of a file that is missing.
  static Found read(io::Fs& fs, const io::Path& file, const std::string& identity, const eval::EvalSet& set);

  /// What is wrong with an existing file of that name: a folder, or a device or a pipe, which no file may replace; ""
  /// for a file, a link to one, and where there is nothing.
  static std::string_view problem(const io::Path& file);

  /// Begins a file with what was read of it, whole or not at all, and appends from there on. Of a link the file that it
  /// points to. Throws ConfigError for what problem() names.
  ExampleFile(io::Fs& fs, const io::Path& file, std::string identity, const std::vector<Numbered>& done);
  /// One line. Throws IoError.
  void add(Index example, const eval::ExampleResult& result);

 private:
  std::string identity_;
  std::unique_ptr<io::OutputFile> file_;
};

}  // namespace megalith::apps
