#pragma once
#include <memory>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/report/run_facts.h"
#include "megalith/report/run_reader.h"

namespace megalith::apps {

/// A page about runs: HTML with its data, style and script in it, which fetches nothing from a network.
class RunPage {
 public:
  /// Throws InputError with the problems of all folders.
  RunPage(std::shared_ptr<io::Fs> fs, const std::vector<std::string>& outs);
  /// Reads what is new. Returns whether anything is.
  bool update();
  /// The data of the page as one JSON object (docs/report.md).
  std::string json() const;
  /// A page that was `served` asks its server for new data; one in a file does not.
  enum class Kind { file, served };
  std::string html(Kind kind) const;

 private:
  struct Run {
    std::string name;
    RunReader reader;
    RunFacts facts;
    std::string recipe = {};                  ///< the text that `facts` are of
    std::vector<std::string> call_logs = {};  ///< files that ranks wrote when a collective failed
  };
  std::shared_ptr<io::Fs> fs_;
  std::vector<Run> runs_;

  /// Returns whether the recipe is another one than before.
  bool read_recipe(Run& run);
  std::string run_json(const Run& run) const;
  std::string differing_keys() const;
};

}  // namespace megalith::apps
