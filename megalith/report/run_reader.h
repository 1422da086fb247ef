#pragma once
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/io/fs.h"
#include "megalith/report/thinned_series.h"

namespace megalith::apps {

/// What happened at a step: a step that was skipped, rerun, a spike or not finite, or an event of history.jsonl.
struct RunMark {
  std::string kind;  ///< "skipped", "rerun", "spike", "not finite", or the member "event" of a line of history.jsonl
  Index step = 0;
  std::string time = {}, text = {};
};

/// The quantities of the experts of each MoE layer: "max_over_mean", "echo.before", ...
struct LayerLoadSeries {
  std::map<std::string, ThinnedSeries> series = {};
  std::string hottest = {};  ///< of the last step: the three experts that most tokens chose, as JSON
};

/// What OUT/metrics.jsonl and OUT/history.jsonl hold. Lines that cannot be used are left out and named.
struct RunMetrics {
  std::map<std::string, ThinnedSeries> series;      ///< by key in metrics.jsonl, nested ones as "moe.aux_loss"
  std::map<Index, LayerLoadSeries> layers;          ///< by number of the MoE layer
  std::map<Index, std::vector<std::string>> evals;  ///< lines of evaluations by step, as JSON
  std::string graphs;                               ///< the last line about CUDA graphs, as JSON; empty: none
  std::vector<RunMark> marks;
  std::map<std::string, Index> counts;  ///< marks by kind, also those that are not kept
  std::vector<std::string> damage;      ///< "metrics.jsonl line 12: ..."
  Index damaged = 0;                    ///< lines, also those that are not listed
  Index steps = 0;                      ///< complete lines of steps
  Index last_step = 0;
};

/// Reads the files of a run that may be in flight, again and again: each call of update() reads what is new.
class RunReader {
 public:
  /// Throws InputError if `out` is no folder or has no metrics.jsonl; the text names the fix.
  RunReader(io::Fs& fs, io::Path out);
  /// Reads the complete lines behind those already read; from the start if a file has become shorter, or another file
  /// (a run that resumes writes metrics.jsonl anew). Returns whether anything is new.
  bool update();
  const RunMetrics& metrics() const { return metrics_; }
  const io::Path& out() const { return out_; }
  /// What was left out: RunMetrics::damage, and lines without an end.
  std::vector<std::string> left_out() const;

 private:
  struct Source {
    const char* name;
    std::string tail = {};  ///< the last bytes that were read, by which another file is recognised
    std::size_t read = 0;   ///< bytes of complete lines
    Index lines = 0;
    std::size_t torn = 0;  ///< bytes of an incomplete last line
  };
  static bool is_unchanged_so_far(const Source& source, std::string_view text);
  bool read(Source& source, std::string_view text);
  void read_line(const Source& source, std::string_view line);
  void read_step(const nlohmann::json& line, Index step);
  void add_layers(const nlohmann::json& layers, Index step);
  void add_number(const std::string& key, const nlohmann::json& value, Index step);
  void mark(RunMark mark);
  void damage(const Source& source, std::string_view what);

  io::Fs& fs_;
  io::Path out_;
  std::array<Source, 2> sources_{{{"metrics.jsonl"}, {"history.jsonl"}}};
  RunMetrics metrics_;
};

}  // namespace megalith::apps
