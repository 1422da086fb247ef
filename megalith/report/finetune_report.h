#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/tasks/task.h"
#include "megalith/tasks/task_figures.h"

namespace megalith::apps {

/// The score of predictions for a file of a task.
struct FileScore {
  std::string file, checksum;  ///< checksum: empty for a folder
  tasks::Figures counts = {}, results = {};
};

/// An object of a number per figure, in their order.
nlohmann::ordered_json json_of(const tasks::Figures& figures);
/// As `eval --format json` prints it: {"task", "data": {"file", "xxh3_128"}, "counts", "results"}.
nlohmann::ordered_json json_of(tasks::Task task, const FileScore& score);
/// The same, read. Throws InputError "[FILE] ..." for another form; `file` is for the message.
FileScore file_score_of(const nlohmann::ordered_json& json, const std::string& file);

/// The score by which runs are compared: the mean of the deciding figure (tasks::deciding_figure) over the files.
double dev_score(tasks::Task task, std::span<const FileScore> files);

/// A run of `finetune`.
struct TunedRun {
  std::string name;  ///< of its folder
  double lr = 0;
  Index batch = 0;
  std::uint64_t seed = 0;
  std::string not_finite = {};      ///< where its loss or a gradient was not finite: it has no score; else empty
  std::string digest = {};          ///< of its last checkpoint
  std::vector<FileScore> dev = {};  ///< of the files of data.valid
  double score = 0;                 ///< dev_score()
};

/// Of several models that answer together.
struct EnsembleScores {
  std::vector<FileScore> dev = {}, test = {};
  double score = 0;
};

/// What `finetune` found. All of it follows from the runs, and nothing from clocks or from the name of its folder.
struct FinetuneReport {
  tasks::Task task = tasks::Task::mnli;
  std::string recipe;                           ///< its file
  std::string inference;                        ///< how runs were scored: "fp32 on cpu, tp 1 pp 1 dp 1, batch 4"
  Index epochs = 0;                             ///< of the recipe: of each run at most
  std::vector<TunedRun> search = {};            ///< of one seed, a run per rate and batch; one: no search
  std::size_t best = 0;                         ///< of `search`
  std::vector<TunedRun> seeds = {};             ///< with the best rate and batch
  std::size_t median = 0;                       ///< of `seeds`
  std::vector<FileScore> test = {};             ///< of the median run
  std::optional<EnsembleScores> ensemble = {};  ///< of `seeds`
};

/// Both with a line end. The first one is read by read_given_report() (paper_tables.h), too.
std::string finetune_json(const FinetuneReport& report);
/// For people: the search, the seeds, and the scores below the rows of the paper's table 5.
std::string finetune_markdown(const FinetuneReport& report);

}  // namespace megalith::apps
