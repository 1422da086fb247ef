#include "apps/eval/eval_report.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/model/model_spec.h"

#include "apps/program/report_lines.h"

namespace megalith::apps {
namespace {

bool is_of_paper(eval::Task task) { return task == eval::Task::wikitext_paper || task == eval::Task::lambada; }

/// Above it decimals have no meaning.
constexpr double kLarge = 1e9;

std::string figure_text(double value) {
  if (std::abs(value) >= kLarge && std::isfinite(value)) return printed("%.6e", value);
  return value == std::floor(value) && std::isfinite(value) ? grouped(static_cast<Index>(value))
                                                            : printed("%.6f", value);
}

double figure(const EvalReport& report, std::string_view wanted) {
  for (const auto& [name, value] : report.figures) {
    if (name == wanted) return value;
  }
  return std::nan("");
}

std::string paper_table(const EvalReport& report) {
  const bool perplexity = report.task == eval::Task::wikitext_paper;
  std::string text = str("\n", perplexity ? "WikiText103 perplexity" : "LAMBADA accuracy",
                         " in Shoeybi et al. 2019, table 3, and here\n");
  const auto add = [&](std::string name, double value) {
    add_line(text, "  " + std::move(name),
             perplexity ? printed(value < kLarge ? "%.2f" : "%.2e", value) : printed("%.2f %%", 100 * value));
  };
  for (const eval::PaperRow& row : eval::paper_rows())
    add(std::string(row.model), perplexity ? row.wikitext_perplexity : row.lambada_accuracy);
  add("this model", figure(report, perplexity ? "adjusted_perplexity" : "accuracy"));
  return text;
}

std::string overlap_text(const OverlapFigures& overlap) {
  std::string text = "\n";
  add_line(text, "overlap with training", overlap.folder);
  const auto add = [&](const char* what, Index examples, const eval::Figures& figures) {
    add_line(text, what, grouped(examples) + " examples");
    for (const auto& [name, value] : figures) add_line(text, "  " + name, figure_text(value));
  };
  add("without overlap", overlap.others, overlap.of_others);
  add("with overlap", overlap.overlapping, overlap.of_overlapping);
  return text;
}

/// A line per subject: accuracy, its standard error and the questions.
std::string subjects_text(const EvalReport& report) {
  std::string text = "\n";
  for (std::size_t i = 0; i < report.subjects.size(); ++i) {
    const auto& [name, figures] = report.subjects[i];
    std::string line;
    for (const auto& [figure, value] : figures)
      if (figure == "acc" || figure == "acc_stderr") line += str(line.empty() ? "" : " +- ", printed("%.6f", value));
    add_line(text, name, str(line, " of ", grouped(static_cast<Index>(report.set.subjects[i].questions))));
  }
  return text;
}

nlohmann::ordered_json results_json(const eval::Figures& figures) {
  nlohmann::ordered_json json;
  for (const auto& [name, value] : figures) {
    if (name.starts_with("correct") || name == "masked_tokens")  // they are counts
      json[name] = static_cast<Index>(value);
    else
      json[name] = value;  // null where it is not finite
  }
  return json;
}

nlohmann::ordered_json overlap_json(const OverlapFigures& overlap) {
  const auto part = [](Index examples, const eval::Figures& figures) {
    nlohmann::ordered_json json = {{"examples", examples}};
    if (!figures.empty()) json["results"] = results_json(figures);
    return json;
  };
  return {{"folder", overlap.folder},
          {"without", part(overlap.others, overlap.of_others)},
          {"with", part(overlap.overlapping, overlap.of_overlapping)}};
}

nlohmann::ordered_json data_json(const EvalReport& report) {
  return {{"file", report.data},
          {report.task == eval::Task::masked_loss ? "fingerprint" : "xxh3_128", report.data_checksum}};
}

nlohmann::ordered_json samples_json(const config::RunPlan& plan) {
  const data::BertSampleConfig& made = plan.model.bert;
  return {{"order", data::kSentenceOrderNames[static_cast<std::size_t>(made.order)]},
          {"mask_fraction", made.mask_fraction},
          {"max_ngram", made.max_ngram},
          {"whole_words", made.whole_words},
          {"short_fraction", made.short_fraction},
          {"seed", plan.train.seed}};
}

double tokens_per_second(const EvalReport& report) {
  return report.seconds > 0 ? static_cast<double>(report.computed_tokens) / report.seconds : 0;
}

}  // namespace

std::string samples_text(const config::RunPlan& plan) {
  const data::BertSampleConfig& made = plan.model.bert;
  return str("order ", data::kSentenceOrderNames[static_cast<std::size_t>(made.order)], ", mask_fraction ",
             exact(made.mask_fraction), ", max_ngram ", made.max_ngram, made.whole_words ? ", whole words" : ", pieces",
             ", short_fraction ", exact(made.short_fraction), ", seed ", plan.train.seed);
}

std::string_view task_name(eval::Task task, eval::ChoiceForm form) {
  switch (task) {
    case eval::Task::loss:
    case eval::Task::masked_loss:
      return "loss";
    case eval::Task::wikitext_paper:
    case eval::Task::wikitext_harness:
      return "wikitext";
    case eval::Task::lambada:
      return "lambada";
    case eval::Task::choice:
      return eval::kChoiceForms[static_cast<std::size_t>(form)];
  }
  return "?";
}

std::string_view protocol_name(eval::Task task) {
  switch (task) {
    case eval::Task::loss:
      return "windows";
    case eval::Task::masked_loss:
      return "samples of epoch 0";
    case eval::Task::wikitext_paper:
      return "paper";
    case eval::Task::wikitext_harness:
      return "harness";
    case eval::Task::lambada:
      return "last word";
    case eval::Task::choice:
      return "lm-evaluation-harness";
  }
  return "?";
}

std::vector<std::string> figure_warnings(const EvalReport& report) {
  std::vector<std::string> warnings;
  const auto look = [&](const eval::Figures& figures, const char* of) {
    for (const auto& [name, value] : figures) {
      if (!std::isfinite(value))
        warnings.push_back(str(name, of,
                               ": is above 1.8e308, the largest number of 64 bits, and is null in JSON; the "
                               "loss is too large for it: the model may be of another tokenizer, or untrained"));
    }
  };
  look(report.figures, "");
  if (report.overlap) {
    look(report.overlap->of_others, " without overlap");
    look(report.overlap->of_overlapping, " with overlap");
  }
  return warnings;
}

std::string report_text(const EvalReport& report) {
  std::string text;
  add_line(text, "task",
           str(task_name(report.task, report.form), ", protocol ", protocol_name(report.task), ", window ",
               report.window, report.stride > 0 ? str(", stride ", report.stride) : ""));
  if (report.task == eval::Task::masked_loss) add_line(text, "samples", samples_text(report.plan));
  add_line(text, "data", str(report.data, " (", report.data_checksum, ")"));
  for (const EvalData::File& file : report.more_files)
    add_line(text, file.use, str(file.path, " (", file.checksum, ")"));
  add_line(text, "checkpoint", str(report.checkpoint, " (", report.digest, ")"));
  add_line(text, "tokenizer",
           str(report.plan.data.tokenizer, report.vocab_dir.empty() ? "" : str(" (", report.vocab_dir, ")")));
  add_line(text, "model", model::parameters_text(report.plan.model));
  add_line(text, "run",
           str(report.plan.train.precision, " on ", name_of(report.plan.device), ", ", config::grid_text(report.plan),
               ", batch ", report.batch));
  add_line(text, "memory of rank 0", owners_text(report.memory));
  add_line(text, "speed",
           str(printed("%.1f s, ", report.seconds), printed("%.0f tokens/s", tokens_per_second(report))));
  if (report.resumed_examples > 0) add_line(text, "resumed examples", grouped(report.resumed_examples));
  text += '\n';
  for (const auto& [name, value] : report.set.counts) add_line(text, name, grouped(value));
  text += '\n';
  for (const auto& [name, value] : report.figures) add_line(text, name, figure_text(value));
  if (!report.subjects.empty()) text += subjects_text(report);
  if (report.overlap) text += overlap_text(*report.overlap);
  if (is_of_paper(report.task)) text += paper_table(report);
  return text;
}

std::string report_json(const EvalReport& report) {
  const model::ModelConfig& model = report.plan.model;
  nlohmann::ordered_json json = {{"task", task_name(report.task, report.form)},
                                 {"protocol", protocol_name(report.task)},
                                 {"window", report.window},
                                 {"data", data_json(report)},
                                 {"checkpoint", {{"folder", report.checkpoint}, {"digest", report.digest}}},
                                 {"tokenizer", {{"name", report.plan.data.tokenizer}, {"folder", report.vocab_dir}}},
                                 {"parameters", model::count_parameters(model) - model::count_padding(model)},
                                 {"precision", report.plan.train.precision},
                                 {"device", name_of(report.plan.device)},
                                 {"grid", config::grid_text(report.plan)},
                                 {"batch", report.batch},
                                 {"seconds", report.seconds},
                                 {"tokens_per_second", tokens_per_second(report)},
                                 {"resumed_examples", report.resumed_examples}};
  for (const EvalData::File& file : report.more_files)
    json[file.use] = {{"file", file.path}, {"xxh3_128", file.checksum}};
  if (report.task == eval::Task::masked_loss) json["samples"] = samples_json(report.plan);
  if (report.stride > 0) json["stride"] = report.stride;
  for (const auto& [owner, bytes] : report.memory) json["memory_bytes"][owner] = bytes;
  for (const auto& [name, value] : report.set.counts) json["counts"][name] = value;
  json["results"] = results_json(report.figures);
  for (const auto& [name, figures] : report.subjects) json["subjects"][name] = results_json(figures);
  if (report.overlap) json["overlap"] = overlap_json(*report.overlap);
  json["warnings"] = report.set.warnings;
  for (const std::string& warning : figure_warnings(report)) json["warnings"].push_back(warning);
  if (is_of_paper(report.task)) {
    for (const eval::PaperRow& row : eval::paper_rows())
      json["paper"].push_back({{"model", row.model},
                               {"wikitext_perplexity", row.wikitext_perplexity},
                               {"lambada_accuracy", row.lambada_accuracy}});
  }
  return json.dump(2) + '\n';
}

}  // namespace megalith::apps
