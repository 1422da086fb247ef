#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"

#include "apps/command.h"
#include "apps/launch.h"
#include "apps/saved_model.h"

namespace megalith::apps {
namespace {

using Lists = std::vector<std::vector<std::int32_t>>;

/// [[15496, 995], ...]
Lists read_lists(io::Fs& fs, const std::string& file, const model::ModelConfig& model) {
  const io::MappedFile mapped = fs.map(file);
  const nlohmann::json json = io::read_json(mapped.text(), {.name = file});
  if (!json.is_array()) throw InputError(str("[", file, "] must be a list of lists of token ids, as [[15496, 995]]"));
  Lists lists;
  for (const nlohmann::json& list : json) {
    const std::string where = str("[", file, "] list ", lists.size());
    if (!list.is_array() || list.empty() || static_cast<Index>(list.size()) > model.seq_len) {
      const std::string what = list.is_array() ? str(" of ", list.size(), " tokens") : str(" = ", list.dump());
      throw InputError(str(where, what, ": must be a list of 1 to ", model.seq_len, " ids, the model's seq_len"));
    }
    std::vector<std::int32_t>& ids = lists.emplace_back();
    for (const nlohmann::json& id : list) {
      if (!id.is_number_integer() || id < 0 || id >= model.vocab_size) {
        throw InputError(
            str(where, ", token ", ids.size(), " = ", id.dump(), ": must be from 0 to ", model.vocab_size - 1));
      }
      ids.push_back(id.get<std::int32_t>());
    }
  }
  return lists;
}

void run_score(const SavedModelOptions& saved, const std::string& file) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  saved.use(*fs, [&](eval::WholeModel& model, const config::RunPlan&) {
    nlohmann::json rows = nlohmann::json::array();
    for (const std::vector<std::int32_t>& ids : read_lists(*fs, file, model.config())) {
      nlohmann::json row = {nullptr};  // the first token has nothing before it
      for (const double logprob : model.log_probabilities(ids)) row.push_back(logprob);
      rows.push_back(std::move(row));
    }
    std::printf("%s\n", nlohmann::json{{"logprobs", rows}}.dump().c_str());
  });
}

}  // namespace

void add_score(CLI::App& program) {
  struct Options {
    SavedModelOptions model;
    std::string tokens;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand(
      "score", "Print the natural log-probability of every token of every list, given those before it");
  options->model.add_to(*command);
  command->add_option("--tokens", options->tokens, "JSON file: a list of lists of token ids")->required();
  command->callback([options] { run_score(options->model, options->tokens); });
}

}  // namespace megalith::apps
