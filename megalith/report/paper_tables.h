#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "megalith/base/types.h"
#include "megalith/io/fs.h"

namespace megalith::apps {

/// Tables of Shoeybi et al. 2019 (arXiv:1909.08053): zero-shot results, fine-tuning results, how to fine-tune.
enum class PaperTable { table3, table5, table6 };

/// How a task was learned.
struct GivenTuning {
  Index batch = 0;
  double lr = 0;
  Index epochs = 0;
};

/// A row that stands beside those of the paper: the results of one model.
struct GivenRow {
  std::string name;
  /// By column: "wikitext", "lambada", "mnli", "mnli_mm", "qqp", "squad1", "squad2", "race", and in it by figure, in
  /// the paper's units: percent, but perplexity.
  std::map<std::string, std::map<std::string, double>> figures;
  std::map<std::string, GivenTuning> tunings = {};  ///< by task, for table6
};

/// Reads a report of `eval --format json` into the row of that name, which is added if there is none. A report.json of
/// `finetune` fills that row with the scores of its median run (RACE: on the test set, if it has one, as in the paper)
/// and, if it has an ensemble, the row "NAME ensemble". MNLI's mismatched set is known by "mismatched" in the name of
/// its data file. table6 takes batch, rate and epochs of reports of `finetune` alone. Throws InputError for another
/// file, for one of a task that the table does not have, and where the row has such a report already.
void read_given_report(io::Fs& fs, const io::Path& file, PaperTable table, const std::string& name,
                       std::vector<GivenRow>& rows);
/// The same for what `file` has.
void add_given_report(const nlohmann::ordered_json& report, const std::string& file, PaperTable table,
                      const std::string& name, std::vector<GivenRow>& rows);

/// The table as text, with remarks on what the paper prints, or as JSON.
std::string paper_table_text(PaperTable table, std::span<const GivenRow> given);
std::string paper_table_json(PaperTable table, std::span<const GivenRow> given);

}  // namespace megalith::apps
