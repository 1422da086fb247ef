#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/eval/figures.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// Results of examples in a file of JSON lines, so that an interrupted evaluation can go on. The first line names the
/// evaluation; then there is one line per example, in the order of computation. Numbers read back exactly. Each line
/// ends with a checksum of itself and of the name of the evaluation. So a changed line, or one copied from another
/// evaluation, does not count.
class ExampleFile {
 public:
  /// An example's number, and its result.
  using Numbered = std::pair<Index, eval::ExampleResult>;
  struct Found {
    std::vector<Numbered> done{};  ///< each example once
    Index changed_lines = 0;       ///< whose checksum differs; after a crash, the cut line
  };

  /// Reads an existing file of the evaluation that `identity` names, of these samples. A missing file has no results.
  /// Throws InputError, naming file and line, for a file of another evaluation and for one that no evaluation wrote. If
  /// the first line was changed, it or another line must show that the file belongs to this evaluation.
  static Found read(io::Fs& fs, const io::Path& file, const std::string& identity, const eval::Samples& samples,
                    eval::SamplesHaveOrder order);

  /// Why an existing path cannot be replaced by a file: it is a folder, a device or a pipe. "" for a file, a link to
  /// one, or a missing path.
  static std::string_view problem(const io::Path& file);

  /// Rewrites the file with the results that were read, whole or not at all, and appends from there on. A link is
  /// followed. Throws ConfigError for the problems of problem().
  ExampleFile(io::Fs& fs, const io::Path& file, std::string identity, eval::SamplesHaveOrder order,
              const std::vector<Numbered>& done);
  /// One line. Throws IoError.
  void add(Index example, const eval::ExampleResult& result);

 private:
  std::string identity_;
  eval::SamplesHaveOrder order_;
  std::unique_ptr<io::OutputFile> file_;
};

}  // namespace megalith::apps
