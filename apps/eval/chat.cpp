#include "apps/eval/chat.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/names.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/data/chat_template.h"
#include "megalith/train/gather.h"

#include "apps/eval/line_input.h"
#include "apps/eval/text_stream.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

/// Shared by all ranks of this process: the model and its template, checked before the ranks start.
class ChatJob {
 public:
  ChatJob(const ChatOptions& options, const Launcher& launcher)
      : options_(options),
        fs_(rank_fs(launcher.process)),
        model_(fs_, options.model, launcher, [this](const InferenceJob& model) { take_template(model); }) {}

  JobShape job() const {
    JobShape job = shape_of(model_.plan());
    for (const auto& fact : model_.facts()) job.facts.push_back(fact);
    return job;
  }
  /// Runs on every rank.
  void run(comm::World& world) const;

  const ChatOptions& options() const { return options_; }
  const data::ChatEncoder& encoder() const { return *encoder_; }
  const std::shared_ptr<const tokenizer::Tokenizer>& tokenizer() const { return tokenizer_; }

 private:
  void take_template(const InferenceJob& model);

  const ChatOptions& options_;
  std::shared_ptr<io::Fs> fs_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::optional<data::ChatEncoder> encoder_;
  InferenceJob model_;  // it calls take_template()
};

void ChatJob::take_template(const InferenceJob& model) {
  refuse_masked_model(options_.model.checkpoint, model.plan().model);
  tokenizer_ = model.tokenizer(options_.vocab_dir);
  if (const std::size_t good = valid_utf8_prefix(options_.system); good != options_.system.size())
    throw ConfigError(str("--system has byte ", good, ": must be UTF-8; convert the text, as by iconv"));
  const std::string& trained = model.plan().data.chat_template;
  const std::string& named = options_.chat_template.empty() ? trained : options_.chat_template;
  const std::string& folder = options_.vocab_dir.empty() ? model.vocab_dir() : options_.vocab_dir;
  const std::optional<data::ChatTemplate> known = enumerator_of<data::ChatTemplate>(data::kChatTemplateNames, named);
  encoder_.emplace(known ? *known : data::chat_template_of_folder(*fs_, folder), *tokenizer_);
}

/// One rank's conversation. All ranks have the same.
class ChatSession {
 public:
  ChatSession(const ChatJob& job, comm::World& world, eval::Decoder& decoder)
      : job_(job), world_(world), decoder_(decoder) {
    if (!job.options().system.empty()) messages_.push_back({data::ChatRole::system, job.options().system});
    first_ = messages_.size();
  }

  void run() {
    while (const std::optional<std::string> question = next_question()) answer(*question);
    if (prints() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0))
      throw IoError("[standard output] write failed");
    if (prints() && counts_.written > 0)
      log::info(str(counts_.written, " tokens in ", counts_.seconds, " s; ", counts_.read, " tokens of prompts read"));
  }

 private:
  /// What becomes of one question.
  struct Turn {
    data::Conversation messages;  // of the prompt
    std::vector<std::int32_t> prompt = {};
    Index left_out = 0;        // questions of the conversation so far
    std::string refused = {};  // why, if it is
    std::string text = {}, ending = {};
    Index tokens = 0;
  };

  bool prints() const { return world_.rank() == 0; }
  bool is_json() const { return job_.options().format == "json"; }
  Index capacity() const { return decoder_.config().capacity; }

  /// The next line that is not blank, on all ranks. A rank waits a second at most for another, so a person may think
  /// for longer than the timeout of ranks.
  std::optional<std::string> next_question() {
    if (prints() && LineInput::is_typed()) std::fputs("> ", stderr);
    for (;;) {
      std::string found;
      if (prints()) {
        constexpr double kWait = 1;
        std::string line;
        const LineInput::Found what = input_.next(kWait, line);
        if (what != LineInput::Found::nothing) found = what == LineInput::Found::line ? "+" + line : "end";
      }
      found = train::share_text(world_, found);
      if (found == "end") return std::nullopt;
      if (found.find_first_not_of(" \t\r", 1) != std::string::npos) return found.substr(1);
    }
  }

  /// Leaves out the oldest questions and answers until there is room for an answer: a quarter of the window, or
  /// --max-tokens if that is less.
  Turn turn_of(const std::string& question) const {
    Turn turn{.messages = messages_};
    turn.messages.push_back({data::ChatRole::user, question});
    const Index room = std::max<Index>(1, std::min(job_.options().drawing.max_tokens, capacity() / 4));
    if (!is_utf8(question)) {
      turn.refused = "the question is not UTF-8: convert it, as by iconv";
      return turn;
    }
    try {
      for (;; ++turn.left_out) {
        turn.prompt = job_.encoder().prompt(turn.messages);
        if (std::ssize(turn.prompt) + room - 1 <= capacity() || turn.messages.size() <= first_ + 1) break;
        const auto oldest = turn.messages.begin() + static_cast<std::ptrdiff_t>(first_);
        turn.messages.erase(oldest, oldest + 2);
      }
    } catch (const InputError& error) {
      turn.refused = error.what();
      return turn;
    }
    if (std::ssize(turn.prompt) > capacity()) {
      turn.refused =
          str("the question alone has ", turn.prompt.size(), " tokens with the system message: must be at most ",
              "model.seq_len = ", capacity(), "; shorten it");
    }
    return turn;
  }

  void answer(const std::string& question) {
    Turn turn = turn_of(question);
    ++turns_;
    if (turn.refused.empty()) {
      write(turn);
      messages_ = turn.messages;
      messages_.push_back({data::ChatRole::assistant, turn.text});
    } else {
      turn.ending = "refused";
      turn.left_out = 0;
    }
    if (prints()) report(question, turn);
  }

  void write(Turn& turn) {
    eval::GenerateOptions options = job_.options().drawing;
    const Index room = capacity() - std::ssize(turn.prompt) + 1;
    const bool is_limited = options.max_tokens > room;
    options.max_tokens = std::min(options.max_tokens, room);
    options.stop_token = job_.encoder().end_of_answer();
    options.slide = 1;
    TextStream stream(job_.tokenizer(), {});
    const auto add = [&](std::string piece) {
      const std::string_view before = job_.encoder().before_answer();
      if (turn.text.empty() && !has_begun_ && !piece.empty()) {
        has_begun_ = true;
        if (piece.starts_with(before)) piece.erase(0, before.size());
      }
      turn.text += piece;
      if (prints() && !is_json()) print(piece);
    };
    has_begun_ = false;
    const eval::TextRequest request{.prompt = turn.prompt};
    const eval::TextEvents events{.token =
                                      [&](std::size_t, std::int32_t id) {
                                        if (id == job_.tokenizer()->end_of_document()) return false;
                                        ++turn.tokens;
                                        add(stream.push(id));
                                        return true;
                                      },
                                  .end =
                                      [&](std::size_t, eval::Ending ending) {
                                        add(stream.finish());
                                        const bool is_full = ending == eval::Ending::max_tokens;
                                        turn.ending = !is_full ? "end_of_answer" : is_limited ? "window" : "max_tokens";
                                      }};
    counts_.add(eval::generate(decoder_, {&request, 1}, options, events));
  }

  static void print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  void report(const std::string& question, const Turn& turn) {
    if (!is_json()) {
      if (turn.refused.empty()) print("\n");
      if (!turn.refused.empty()) log::warning(str("question ", turns_, ": ", turn.refused));
      if (turn.left_out > 0)
        log::info(str("the window of ", capacity(), " tokens is full: the oldest ", turn.left_out,
                      turn.left_out == 1 ? " question was" : " questions were", " left out"));
      return;
    }
    nlohmann::ordered_json line = {{"turn", turns_}, {"question", question}};
    if (turn.refused.empty())
      line["answer"] = turn.text;
    else
      line["refused"] = turn.refused;
    line["prompt_tokens"] = turn.prompt.size();
    line["tokens"] = turn.tokens;
    line["ending"] = turn.ending;
    line["left_out"] = turn.left_out;
    print(line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }

  const ChatJob& job_;
  comm::World& world_;
  eval::Decoder& decoder_;
  LineInput input_;
  data::Conversation messages_;
  std::size_t first_ = 0;  // message behind the system's
  Index turns_ = 0;
  bool has_begun_ = false;  // the answer that is being written
  eval::GenerateCounts counts_;
};

void ChatJob::run(comm::World& world) const {
  const config::RunPlan& plan = model_.plan();
  const comm::Mesh mesh = comm::make_mesh(world, plan.grid, plan.transfers);
  const Index step = eval::rows_step(plan.model, plan.grid);
  eval::Decoder decoder({.model = plan.model,
                         .dtype = plan.train.policy().compute,
                         .device = plan.device,
                         .slots = step,
                         .capacity = plan.model.seq_len / step * step,
                         .steps = eval::steps_for(plan.model, {plan.device, plan.train.policy().compute, plan.grid})},
                        world, mesh);
  model_.load(world, decoder);
  ChatSession(*this, world, decoder).run();
}

}  // namespace

void run_chat(const ChatOptions& options) {
  const Launcher launcher = detect_launcher();
  std::optional<ChatJob> job;
  run_job(launcher, {.shape =
                         [&] {
                           job.emplace(options, launcher);
                           return job->job();
                         },
                     .body = [&](comm::World& world) { job->run(world); }});
}

}  // namespace megalith::apps
