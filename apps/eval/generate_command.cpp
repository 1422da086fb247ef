#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/eval/generate.h"

#include "apps/eval/chat.h"
#include "apps/eval/inference.h"
#include "apps/eval/text_gather.h"
#include "apps/eval/text_printer.h"
#include "apps/eval/text_stream.h"
#include "apps/program/command.h"

namespace megalith::apps {
namespace {

struct GenerateCommand {
  InferenceOptions model;
  std::string prompt, prompts, vocab_dir, format = "text";
  std::vector<std::string> stops;
  Index samples = 1;
  eval::GenerateOptions options;
  bool chat = false;
  std::string system, chat_template;
};

double rate(Index count, double seconds) { return seconds > 0 ? static_cast<double>(count) / seconds : 0; }

/// Shared by all ranks of this process: the options and files, checked before the ranks start.
class Session {
 public:
  Session(const GenerateCommand& command, const Launcher& launcher)
      : command_(command),
        fs_(rank_fs(launcher.process)),
        model_(fs_, command.model, launcher, [this](const InferenceJob& model) {
          refuse_masked_model(command_.model.checkpoint, model.plan().model);
          check_both([&] { check_options(model.plan().model); }, [&] { take_prompts(model); });
        }) {
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      for (Index sample = 0; sample < command.samples; ++sample)
        texts_.push_back({&prompts_[i], static_cast<Index>(i) + 1, sample});
    }
  }

  JobShape job() const {
    JobShape job = shape_of(model_.plan());
    for (const auto& fact : model_.facts()) job.facts.push_back(fact);
    return job;
  }
  /// Runs on every rank.
  void run(comm::World& world) const;

 private:
  Index seq_len() const { return model_.plan().model.seq_len; }
  void check_options(const model::ModelConfig& model) const;
  void take_prompts(const InferenceJob& model);
  Index rows_step() const { return eval::rows_step(model_.plan().model, model_.plan().grid); }
  /// The most tokens of a text.
  Index capacity() const {
    std::size_t longest = 0;
    for (const Prompt& prompt : prompts_) longest = std::max(longest, prompt.ids.size());
    const Index tokens = static_cast<Index>(longest) + std::max<Index>(command_.options.max_tokens, 1) - 1;
    return std::min(seq_len(), round_up(tokens, rows_step()));
  }
  std::vector<eval::TextRequest> requests(const std::vector<std::size_t>& mine) const;
  eval::GenerateOptions options() const;
  eval::GenerateCounts generate(eval::Decoder& decoder, const std::vector<std::size_t>& mine, TextPrinter& printer,
                                TextGather& gather) const;
  void note_slide(std::size_t text, TextPrinter& printer) const;
  void report(const eval::GenerateCounts& counts, const eval::Decoder& decoder, const std::string& digest,
              TextPrinter& printer) const;

  const GenerateCommand& command_;
  std::shared_ptr<io::Fs> fs_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::vector<Prompt> prompts_;
  InferenceJob model_;  // it calls take_prompts()
  std::vector<TextOfPrompt> texts_;
};

void Session::take_prompts(const InferenceJob& model) {
  tokenizer_ = model.tokenizer(command_.vocab_dir);
  const model::ModelConfig& shape = model.plan().model;
  const PromptRules rules{*tokenizer_, shape.vocab_size, shape.seq_len};
  if (command_.prompts.empty())
    prompts_ = {one_prompt(command_.prompt, rules)};
  else
    prompts_ = read_prompts(*fs_, command_.prompts, rules);
}

void Session::check_options(const model::ModelConfig& model) const {
  Problems problems;
  problems.require(command_.options.slide <= model.seq_len, "--slide", command_.options.slide,
                   str("must be at most model.seq_len = ", model.seq_len));
  for (const std::string& stop : command_.stops) problems.require(!stop.empty(), "--stop", "\"\"", "must not be empty");
  problems.throw_if_any("generate");
}

std::vector<eval::TextRequest> Session::requests(const std::vector<std::size_t>& mine) const {
  std::vector<eval::TextRequest> requests;
  for (const std::size_t text : mine) requests.push_back({texts_[text].prompt->ids, texts_[text].sample});
  return requests;
}

eval::GenerateOptions Session::options() const {
  eval::GenerateOptions options = command_.options;
  options.stop_token = tokenizer_->end_of_document();
  options.slide = std::min(options.slide, capacity());
  return options;
}

eval::GenerateCounts Session::generate(eval::Decoder& decoder, const std::vector<std::size_t>& mine,
                                       TextPrinter& printer, TextGather& gather) const {
  std::vector<TextStream> streams;
  for (std::size_t i = 0; i < mine.size(); ++i) streams.emplace_back(tokenizer_, command_.stops);
  std::vector<Index> tokens(mine.size());
  return eval::generate(decoder, requests(mine), options(),
                        {.token =
                             [&](std::size_t i, std::int32_t id) {
                               ++tokens[i];
                               printer.add(mine[i], streams[i].push(id));
                               return !streams[i].is_stopped();
                             },
                         .end =
                             [&](std::size_t i, eval::Ending ending) {
                               printer.add(mine[i], streams[i].finish());
                               printer.end(mine[i], streams[i].is_stopped() ? eval::Ending::refused : ending,
                                           tokens[i]);
                             },
                         .slide = [&](std::size_t i) { note_slide(mine[i], printer); },
                         .round = [&] { gather.round([&](std::size_t i) { note_slide(i, printer); }); }});
}

/// Prints a note at the first slide.
void Session::note_slide(std::size_t text, TextPrinter& printer) const {
  if (!printer.has_slid() && printer.prints()) {
    printer.note(str("prompt ", texts_[text].number, ", sample ", texts_[text].sample, " fills the window of ",
                     seq_len(), " tokens: it loses ", command_.options.slide,
                     " at its beginning each time, and the keys and values of the rest are computed again; the "
                     "same holds for other texts"));
  }
  printer.slid(text);
}

void Session::report(const eval::GenerateCounts& counts, const eval::Decoder& decoder, const std::string& digest,
                     TextPrinter& printer) const {
  const config::RunPlan& plan = model_.plan();
  const double per_s = rate(counts.written, counts.seconds), step_per_s = rate(counts.stepped, counts.step_s);
  const double read_per_s = rate(counts.read, counts.read_s);
  log::info(str(counts.written, " tokens in ", counts.seconds, " s: ", per_s, " tokens/s; steps alone ", step_per_s,
                " tokens/s; ", counts.read, " tokens of prompts and windows read at ", read_per_s, " tokens/s; ",
                plan.train.precision, " on ", name_of(plan.device), ", ", config::grid_text(plan)));
  log::info(str("checkpoint ", model_.folder().string(), " (", digest, ")"));
  log::info("memory of a rank: " + owners_text(decoder.taken_bytes()));
  nlohmann::ordered_json summary;
  summary["tokens"] = counts.written;
  summary["seconds"] = counts.seconds;
  summary["tokens_per_s"] = per_s;
  summary["step_tokens_per_s"] = step_per_s;
  summary["read_tokens"] = counts.read;
  summary["read_tokens_per_s"] = read_per_s;
  summary["precision"] = plan.train.precision;
  summary["device"] = name_of(plan.device);
  summary["grid"] = config::grid_text(plan);
  summary["checkpoint"] = {{"folder", model_.folder().string()}, {"digest", digest}};
  summary["slots"] = decoder.config().slots;
  summary["memory_bytes"] = decoder.taken_bytes();
  printer.summary(nlohmann::ordered_json{{"summary", summary}}.dump());
}

void Session::run(comm::World& world) const {
  const config::RunPlan& plan = model_.plan();
  const comm::Mesh mesh = comm::make_mesh(world, plan.grid, plan.transfers);
  const auto copies = static_cast<std::size_t>(mesh.dp.size());
  std::vector<std::size_t> all(texts_.size()), mine;
  std::iota(all.begin(), all.end(), 0);
  for (auto i = static_cast<std::size_t>(mesh.dp_rank()); i < all.size(); i += copies) mine.push_back(i);
  const auto max_texts = static_cast<Index>((all.size() + copies - 1) / copies);  // per copy
  eval::Decoder decoder({.model = plan.model,
                         .dtype = plan.train.policy().compute,
                         .device = plan.device,
                         .slots = round_up(std::clamp<Index>(max_texts, 1, model_.batch()), rows_step()),
                         .capacity = capacity(),
                         .steps = eval::steps_for(plan.model, {plan.device, plan.train.policy().compute, plan.grid}),
                         .lengths = eval::window_lengths(requests(all), options(), capacity())},
                        world, mesh);
  const std::string digest = model_.load(world, decoder);
  TextPrinter printer(texts_, command_.format == "json" ? TextFormat::json : TextFormat::text,
                      world.rank() == 0 ? Printing::on : Printing::off);
  const bool sends = mesh.dp_rank() != 0 && mesh.tp_rank() == 0 && mesh.first_stage();
  TextGather gather(world, sends ? mine : std::vector<std::size_t>(), printer);
  printer.begin();
  eval::GenerateCounts counts = generate(decoder, mine, printer, gather);
  if (mesh.tp_rank() != 0 || !mesh.last_stage()) counts = {};  // other stages do not wait for the end of a step
  eval::GenerateCounts of_all;
  for (const eval::GenerateCounts& one : comm::gather_values(world.all(), counts)) of_all.add(one);
  if (world.rank() == 0) report(of_all, decoder, digest, printer);
}

void run_generate(const GenerateCommand& command) {
  if (command.chat)
    return run_chat(
        {command.model, command.vocab_dir, command.format, command.system, command.chat_template, command.options});
  const Launcher launcher = detect_launcher();
  std::optional<Session> session;
  run_job(launcher, {.shape =
                         [&] {
                           session.emplace(command, launcher);
                           return session->job();
                         },
                     .body = [&](comm::World& world) { session->run(world); }});
}

/// Returns --slide.
CLI::Option* add_drawing(CLI::App& app, eval::GenerateOptions& options) {
  app.add_option("--max-tokens", options.max_tokens, "Tokens to add to a text")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--temperature", options.temperature, "0: always the likeliest token")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--top-k", options.top_k, "Draw among the k likeliest tokens only; 0: among all")
      ->check(at_least(0))
      ->capture_default_str();
  app.add_option("--top-p", options.top_p, "Draw among the fewest likeliest tokens whose probabilities reach this")
      ->check(number_that([](double value) { return value > 0 && value <= 1; }, "in (0, 1]"))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Same seed, same text: for every grid, batch and order of prompts")
      ->check(seed_number())
      ->capture_default_str();
  return app
      .add_option("--slide", options.slide,
                  "Tokens that a text's window loses at its beginning when it is full; the rest is then read again")
      ->check(at_least(1))
      ->capture_default_str();
}

}  // namespace

void add_generate(CLI::App& program) {
  auto command = std::make_shared<GenerateCommand>();
  CLI::App* app = program.add_subcommand("generate", "Continue texts with a trained model, on any grid");
  add_model(*app, command->model);
  command->model.keys = GridKeys::even_stages;
  command->model.add_to(*app);
  CLI::Option* const prompt =
      app->add_option("--prompt", command->prompt, "Text to continue (default: a new document)");
  CLI::Option* const prompts =
      app->add_option("--prompts", command->prompts, "JSON lines {\"prompt\": \"text\", \"name\": \"optional\"}")
          ->excludes(prompt);
  CLI::Option* const samples = app->add_option("--samples", command->samples, "Texts for each prompt")
                                   ->check(between(1, 1'000'000))
                                   ->capture_default_str();
  command->model.batch = 8;
  CLI::Option* const batch =
      app->add_option("--batch", command->model.batch, "Texts that go on at once on a copy of the model")
          ->check(between(1, 65536))
          ->capture_default_str();
  CLI::Option* const slide = add_drawing(*app, command->options);
  CLI::Option* const stop =
      app->add_option("--stop", command->stops, "End a text before the first of these texts (may be repeated)")
          ->take_all()
          ->allow_extra_args(false);
  CLI::Option* const chat =
      app->add_flag("--chat", command->chat, "Answer each line of standard input, and keep the conversation");
  for (CLI::Option* const other : {prompt, prompts, samples, batch, slide, stop}) chat->excludes(other);
  app->add_option("--system", command->system, "System message of --chat")->needs(chat);
  app->add_option("--chat-template", command->chat_template,
                  "chatml, llama3 or plain (default: that of the training, else of the tokenizer's folder)")
      ->check(CLI::IsMember({"chatml", "llama3", "plain"}))
      ->needs(chat);
  app->add_option("--format", command->format,
                  "text, or json: one line for each text, and a summary (--chat: for each answer)")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app->add_option("--vocab-dir", command->vocab_dir, "Where the tokenizer's files are (default: the checkpoint's own)");
  app->callback([command] { run_generate(*command); });
}

}  // namespace megalith::apps
