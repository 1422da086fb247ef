#include <cstdio>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/data/tokenizer.h"
#include "megalith/eval/generate.h"

#include "apps/command.h"
#include "apps/launch.h"
#include "apps/saved_model.h"
#include "apps/vocabulary.h"

namespace megalith::apps {
namespace {

struct GenerateCommand {
  SavedModelOptions model;
  std::string prompt, vocab_dir;
  eval::GenerateOptions options;
};

/// Decodes whole characters as they come, and flushes, so that the text streams.
void stream(eval::WholeModel& model, std::vector<std::int32_t> prompt,
            const std::shared_ptr<const data::Tokenizer>& tokenizer, const eval::GenerateOptions& options) {
  data::StreamDecoder decoder(tokenizer);
  const auto print = [](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  eval::generate(model, std::move(prompt), options, [&](std::int32_t id) {
    // Padding of the vocabulary has no text; a model of more ids than its tokenizer can draw one.
    if (id < tokenizer->vocab_size()) print(decoder.push(id));
    return true;
  });
  print(decoder.finish() + "\n");
}

void run_generate(const GenerateCommand& command) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  command.model.use(*fs, [&](eval::WholeModel& model, const config::RunPlan& plan) {
    const std::string vocab_dir = command.vocab_dir.empty() ? plan.data.vocab_dir : command.vocab_dir;
    const auto tokenizer = open_tokenizer(*fs, plan.data.tokenizer, vocab_dir);
    std::vector<std::int32_t> prompt = tokenizer->encode(command.prompt);
    if (prompt.empty()) prompt.push_back(tokenizer->end_of_document());
    eval::GenerateOptions options = command.options;
    options.stop_token = tokenizer->end_of_document();
    std::fputs(command.prompt.c_str(), stdout);
    stream(model, std::move(prompt), tokenizer, options);
  });
}

}  // namespace

void add_generate(CLI::App& program) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* app = program.add_subcommand("generate", "Continue a text with a trained model (one rank)");
  command->model.add_to(*app);
  app->add_option("--prompt", command->prompt, "Text to continue (default: a new document)");
  app->add_option("--max-tokens", command->options.max_tokens, "Tokens to add")
      ->check(at_least(0))
      ->capture_default_str();
  app->add_option("--temperature", command->options.temperature, "0: always the likeliest token")
      ->check(at_least(0))
      ->capture_default_str();
  app->add_option("--top-k", command->options.top_k, "Draw among the k likeliest tokens only; 0: among all")
      ->check(at_least(0))
      ->capture_default_str();
  app->add_option("--top-p", command->options.top_p,
                  "Draw among the fewest likeliest tokens whose probabilities reach this")
      ->check(CLI::Range(1e-6, 1.0).description("in (0, 1]"))
      ->capture_default_str();
  app->add_option("--seed", command->options.seed, "Same seed, same text")->capture_default_str();
  app->add_option("--vocab-dir", command->vocab_dir, "Where the tokenizer's files are (default: the checkpoint's own)");
  app->callback([command] { run_generate(*command); });
}

}  // namespace megalith::apps
