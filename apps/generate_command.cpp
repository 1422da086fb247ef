#include <cstdio>
#include <memory>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/comm/threads/thread_world.h"
#include "megalith/config/run_plan.h"
#include "megalith/data/tokenizer.h"
#include "megalith/eval/generate.h"
#include "megalith/io/save_protocol.h"

#include "apps/checkpoint_folder.h"
#include "apps/command.h"
#include "apps/launch.h"

namespace megalith::apps {
namespace {

struct GenerateCommand {
  std::string checkpoint, prompt, vocab_dir;
  eval::GenerateOptions options;
};

/// Decodes whole characters as they come, and flushes, so that the text streams.
void stream(eval::Generator& generator, std::vector<std::int32_t> prompt,
            const std::shared_ptr<const data::Tokenizer>& tokenizer, const eval::GenerateOptions& options) {
  data::StreamDecoder decoder(tokenizer);
  const auto print = [](const std::string& text) {
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  generator.run(std::move(prompt), options, [&](std::int32_t id) {
    // Padding of the vocabulary has no text; a model of more ids than its tokenizer can draw one.
    if (id < tokenizer->vocab_size()) print(decoder.push(id));
    return stop_signal() == 0;
  });
  print(decoder.finish() + "\n");
}

/// Continues the prompt with the model of a checkpoint. Returns what is wrong with its files: nothing was printed then.
std::string generate_from(const io::Path& folder, const GenerateCommand& command, io::Fs& fs) {
  checkpoint::CheckpointReader reader(fs, folder);
  const auto recipe = reader.manifest().run.texts.find("recipe");
  if (recipe == reader.manifest().run.texts.end())
    throw InputError(str(folder.string(), "/MANIFEST: texts.recipe is missing"));
  const config::RunPlan plan = config::resolve(config::parse_recipe(recipe->second, "checkpoint's recipe"));
  const std::string vocab_dir = command.vocab_dir.empty() ? plan.data.vocab_dir : command.vocab_dir;
  const std::shared_ptr<const data::Tokenizer> tokenizer = data::make_tokenizer(plan.data.tokenizer, vocab_dir, fs);
  std::vector<std::int32_t> prompt = tokenizer->encode(command.prompt);
  if (prompt.empty()) prompt.push_back(tokenizer->end_of_document());

  std::string damage;
  comm::run_ranks(1, [&](comm::World& world) {
    eval::Generator generator(plan.model, grid::make_mesh(world, grid::resolve({})), plan.train.dtype());
    try {
      for (const Param& param : generator.params().params())
        reader.read(param.spec.slice, param.without_padding(param.value));
    } catch (const InputError& error) {
      damage = error.what();
      return;
    }
    eval::GenerateOptions options = command.options;
    options.stop_token = tokenizer->end_of_document();
    std::fputs(command.prompt.c_str(), stdout);
    stream(generator, prompt, tokenizer, options);
  });
  return damage;
}

void run_generate(const GenerateCommand& command) {
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  catch_stop_signals();
  std::vector<checkpoint::Rejected> unusable;
  for (;;) {
    const io::Path folder = checkpoint_folder(*fs, command.checkpoint, checkpoint::OnCorrupt::previous, unusable);
    const std::string damage = generate_from(folder, command, *fs);
    if (damage.empty()) break;
    const auto step = io::parse_step_folder(folder.filename().string());
    if (!step || names_one_checkpoint(*fs, command.checkpoint)) throw InputError(damage);
    unusable.push_back({*step, damage});
  }
  if (stop_signal() != 0) throw StoppedError("stopped on request: the text ends early");
}

}  // namespace

void add_generate(CLI::App& program) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* app = program.add_subcommand("generate", "Continue a text with a trained model (one rank)");
  app->add_option("--checkpoint", command->checkpoint, "Step folder, folder of steps, or OUT of a run")->required();
  app->add_option("--prompt", command->prompt, "Text to continue (default: a new document)");
  app->add_option("--max-tokens", command->options.max_tokens, "Tokens to add")
      ->check(at_least(0))
      ->capture_default_str();
  app->add_option("--temperature", command->options.temperature, "0: always the likeliest token")
      ->check(at_least(0))
      ->capture_default_str();
  app->add_option("--seed", command->options.seed, "Same seed, same text")->capture_default_str();
  app->add_option("--vocab-dir", command->vocab_dir, "Where the tokenizer's files are (default: as trained)");
  app->callback([command] { run_generate(*command); });
}

}  // namespace megalith::apps
