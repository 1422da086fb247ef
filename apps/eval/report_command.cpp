#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/file_problems.h"
#include "megalith/report/page_server.h"
#include "megalith/report/paper_tables.h"
#include "megalith/report/run_page.h"

#include "apps/program/command.h"
#include "apps/program/output_path.h"

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
  if (equals == 0 || equals + 1 == report.size())
    throw InputError(str("[", report, "] must be NAME=FILE with a name and a file, or a file that exists"));
  return {report.substr(0, equals), report.substr(equals + 1)};
}

/// Rows in the order of their first report. Throws InputError with the problems of all reports.
std::vector<GivenRow> given_rows(PaperTable table, const std::vector<std::string>& reports) {
  std::vector<GivenRow> rows;
  io::SeveralFiles files;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  for (const std::string& report : reports) {
    files.check([&] {
      const auto [name, file] = name_and_file(*fs, report);
      read_given_report(*fs, file, table, name, rows);
    });
  }
  files.throw_if_any();
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
  const std::string files = table == PaperTable::table3   ? "reports of `eval --format json`"
                            : table == PaperTable::table5 ? "reports of `eval --format json`, and report.json of "
                                                            "`finetune`"
                                                          : "report.json of `finetune`";
  command->add_option("reports", options->reports,
                      str("[NAME=]FILE: ", files, "; ",
                          table == PaperTable::table6 ? "each task of a NAME is a row below the paper's"
                                                      : "those of one NAME are one row below the paper's"));
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options, table] { print_paper_table(table, *options); });
}

struct PageOptions {
  std::vector<std::string> outs;
  std::string output, serve;
};

void write_page(const RunPage& page, const PageOptions& options) {
  const io::Path file =
      options.output.empty() ? io::Path(options.outs.front()) / "report.html" : io::Path(options.output);
  require_links("--output", file);
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  if (fs->is_dir(file)) throw ConfigError(str("--output = ", file.string(), ": is a folder; name a file in it"));
  const std::string html = page.html(RunPage::Kind::file);
  io::publish_file(*fs, file, html);
  std::printf("%s: %s, opens in a browser\n", file.c_str(), human_bytes(std::ssize(html)).c_str());
}

/// Until the program is ended.
void serve_page(RunPage& page, const LoopbackAddress& address) {
  std::string json = page.json();
  const auto tag_of = [](const std::string& text) { return '"' + hex64(fnv1a(text)) + '"'; };
  PageServer server(address, [&](std::string_view path) -> PageAnswer {
    if (path != "/" && path != "/data.json") return {.status = 404, .body = "there are / and /data.json\n"};
    if (page.update()) json = page.json();
    if (path == "/") return {.type = "text/html; charset=utf-8", .body = page.html(RunPage::Kind::served)};
    return {.type = "application/json", .body = json, .tag = tag_of(json)};
  });
  std::printf("http://%s/ shows the run until Ctrl-C\n", server.address().text().c_str());
  std::fflush(stdout);
  const std::atomic<bool> never = false;
  server.serve(never);
}

void make_page(const PageOptions& options) {
  std::optional<LoopbackAddress> address;
  if (!options.serve.empty()) address = parse_loopback(options.serve);
  RunPage page(io::posix_fs(), options.outs);
  if (!address || !options.output.empty()) write_page(page, options);
  if (address) serve_page(page, *address);
}

/// A word is the table of that name where there is one. So CLI11 reads them, and a folder of such a name needs "./".
void add_run_page(CLI::App& report) {
  const auto options = std::make_shared<PageOptions>();
  report.add_option(
      "outs", options->outs,
      "Folders of runs (--out of train), for a page about them; a folder that is called as a table below: "
      "./table3");
  report.add_option("--output", options->output, "The page's file (default: report.html in the first folder)");
  report.add_option("--serve", options->serve, "127.0.0.1:PORT: show the page there, which follows runs in flight");
  report.parse_complete_callback([options, &report] {  // before that of a table
    if (report.get_subcommands().empty()) return;
    const std::string table = report.get_subcommands().front()->get_name();
    if (!options->outs.empty() || !options->output.empty() || !options->serve.empty())
      throw ConfigError(
          str("report: a page about folders, or the table ", table, ", not both; a folder of that name is ./", table));
  });
  report.final_callback([options, &report] {
    if (!report.get_subcommands().empty()) return;
    if (options->outs.empty()) throw CLI::RequiredError("A folder of a run, or a subcommand");
    make_page(*options);
  });
}

}  // namespace

void add_report(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "report", "Make a page about runs, or print tables of Shoeybi et al. 2019 with your results below");
  command->require_subcommand(0, 1);
  add_run_page(*command);
  add_paper_table(*command, "table3", "Zero-shot results: WikiText103 perplexity and LAMBADA accuracy",
                  PaperTable::table3);
  add_paper_table(*command, "table5", "Fine-tuned models: MNLI, QQP, SQuAD 1.1 and 2.0, RACE", PaperTable::table5);
  add_paper_table(*command, "table6", "Batch, learning rate and epochs of fine-tuning", PaperTable::table6);
}

}  // namespace megalith::apps
