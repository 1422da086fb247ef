#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/file_problems.h"
#include "megalith/report/paper_tables.h"

#include "apps/program/command.h"

namespace megalith::apps {
namespace {

struct ReportOptions {
  std::vector<std::string> reports;
  std::string format = "text";
};

/// "NAME=FILE"; a file alone has its stem as the name, also one with "=" in its path.
std::pair<std::string, std::string> name_and_file(io::Fs& fs, const std::string& report) {
  const std::size_t equals = report.find('=');
  if (equals == std::string::npos || fs.exists(report)) return {io::Path(report).stem().string(), report};
  return {report.substr(0, equals), report.substr(equals + 1)};
}

/// Rows in the order of their first report. Throws InputError with the problems of all reports.
std::vector<GivenRow> given_rows(PaperTable table, const std::vector<std::string>& reports) {
  std::vector<GivenRow> rows;
  io::FileProblems problems;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  for (const std::string& report : reports) {
    const auto [name, file] = name_and_file(*fs, report);
    auto row = std::ranges::find(rows, name, &GivenRow::name);
    if (row == rows.end()) row = rows.insert(rows.end(), GivenRow{.name = name, .figures = {}});
    try {
      read_given_report(*fs, file, table, *row);
    } catch (const InputError& error) {
      problems.add(error.what());
    }
  }
  problems.throw_if_any("report");
  return rows;
}

void print_paper_table(PaperTable table, const ReportOptions& options) {
  const std::vector<GivenRow> rows = given_rows(table, options.reports);
  const std::string text = options.format == "json" ? paper_table_json(table, rows) : paper_table_text(table, rows);
  std::fwrite(text.data(), 1, text.size(), stdout);  // main checks that it could be written
}

void add_paper_table(CLI::App& report, const char* name, const char* help, PaperTable table) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* command = report.add_subcommand(name, help);
  if (table != PaperTable::table6)
    command->add_option(
        "reports", options->reports,
        "[NAME=]FILE: reports of `eval --format json`; those of one NAME are one row below the paper's");
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options, table] { print_paper_table(table, *options); });
}

}  // namespace

void add_report(CLI::App& program) {
  CLI::App* command = program.add_subcommand("report", "Print tables of Shoeybi et al. 2019 with your results below");
  command->require_subcommand(1);
  add_paper_table(*command, "table3", "Zero-shot results: WikiText103 perplexity and LAMBADA accuracy",
                  PaperTable::table3);
  add_paper_table(*command, "table5", "Fine-tuned models: MNLI, QQP, SQuAD 1.1 and 2.0, RACE", PaperTable::table5);
  add_paper_table(*command, "table6", "Batch, learning rate and epochs of fine-tuning", PaperTable::table6);
}

}  // namespace megalith::apps
