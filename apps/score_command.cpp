#include <cstdio>
#include <functional>
#include <memory>
#include <span>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

#include "apps/command.h"
#include "apps/launch.h"
#include "apps/saved_model.h"

namespace megalith::apps {
namespace {

/// Follows [[15496, 995], ...] and hands on one list after the other, so that memory holds one.
class ListReader final : public io::JsonVisitor {
 public:
  using Take = std::function<void(std::span<const std::int32_t>)>;
  ListReader(const std::string& file, const model::ModelConfig& model, Take take)
      : file_(file), model_(model), take_(std::move(take)) {}

  void start_array() override {
    if (depth_ == 2) refuse_token("a list");
    ++depth_;
  }
  void end_array() override {
    if (--depth_ != 1) return;
    if (length_ == 0 || length_ > model_.seq_len) refuse_list(str(" of ", length_, " tokens"));
    take_(ids_);
    ids_.clear();
    length_ = 0;
    ++lists_;
  }
  void count(std::uint64_t value) override {
    if (depth_ < 2 || value >= static_cast<std::uint64_t>(model_.vocab_size)) return other(std::to_string(value));
    if (++length_ <= model_.seq_len) ids_.push_back(static_cast<std::int32_t>(value));
  }
  void other(std::string_view shown) override {
    if (depth_ == 0) throw InputError(str("[", file_, "] must be a list of lists of token ids, as [[15496, 995]]"));
    if (depth_ == 1) refuse_list(str(" = ", shown));
    refuse_token(shown);
  }
  void text(std::string& value) override { other(str('"', io::printable(value), '"')); }
  void start_object() override { other("an object"); }
  void end_object() override {}
  void key(std::string& /*name*/) override {}

 private:
  [[noreturn]] void refuse_list(std::string_view what) const {
    throw InputError(str("[", file_, "] list ", lists_, what, ": must be a list of 1 to ", model_.seq_len,
                         " ids, the model's seq_len"));
  }
  [[noreturn]] void refuse_token(std::string_view what) const {
    throw InputError(str("[", file_, "] list ", lists_, ", token ", length_, " = ", what, ": must be from 0 to ",
                         model_.vocab_size - 1));
  }

  const std::string& file_;
  const model::ModelConfig& model_;
  Take take_;
  int depth_ = 0;
  Index lists_ = 0, length_ = 0;  // lists before this one; its tokens so far
  std::vector<std::int32_t> ids_;
};

void run_score(const SavedModelOptions& saved, const std::string& file) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  data::require_file(*fs, file, "--tokens");
  saved.use(*fs, [&](eval::WholeModel& model, const config::RunPlan&) {
    const io::MappedFile mapped = fs->map(file);
    const auto read = [&](ListReader::Take take) {
      ListReader lists(file, model.config(), std::move(take));
      io::visit_json(mapped.text(), {.name = file}, lists);
    };
    read([](auto) {});  // all of it is right before anything is computed
    bool first = true;
    std::fputs("{\"logprobs\":[", stdout);
    read([&](std::span<const std::int32_t> ids) {
      nlohmann::json row = {nullptr};  // the first token has nothing before it
      for (const double logprob : model.log_probabilities(ids)) row.push_back(logprob);
      std::printf("%s%s", first ? "" : ",", row.dump().c_str());
      first = false;
    });
    std::puts("]}");
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw IoError("[standard output] write failed");
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
