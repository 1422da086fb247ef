#pragma once
#include <memory>
#include <string>

#include "megalith/base/str.h"
#include "megalith/config/run_plan.h"
#include "megalith/tasks/task_set.h"

#include "tests/io/temp_dir.h"

namespace megalith::support {

/// Small files of all tasks, in which the answers follow from words: sets of 64 samples.
class TaskSets {
 public:
  static constexpr Index kSeqLen = 16;
  TaskSets() {
    std::string vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nwho\n?\nthe\nis\nnot\nhere\nleft\nann\n";
    for (int i = 0; i < 24; ++i) vocabulary += word(i) + "\n";
    std::filesystem::create_directories(dir_ / "vocab");
    write_all(dir_ / "vocab/vocab.txt", vocabulary);
    tokenizer_ = tokenizer::make_tokenizer("bert-uncased", dir_ / "vocab", *io::posix_fs());
    write_all(dir_ / "mnli.jsonl", pairs({"entailment", "neutral", "contradiction"}));
    write_all(dir_ / "qqp.jsonl", pairs({"0", "1"}));
    write_all(dir_ / "race.jsonl", race());
    write_all(dir_ / "squad1.json", squad(Unanswered::none));
    write_all(dir_ / "squad2.json", squad(Unanswered::every_fourth));
  }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  std::string vocabulary() const { return (dir_ / "vocab").string(); }
  std::string file(const std::string& task) const {
    return (dir_ / (task + (task.starts_with("squad") ? ".json" : ".jsonl"))).string();
  }
  /// Keys of a recipe on top of those of a small model.
  void put_keys(const std::string& task, config::RunConfig& c) const {
    c.task.name = task;
    c.task.epochs = 2;
    c.task.max_query = 6;
    c.task.doc_stride = 6;
    c.train.steps.reset();
    c.model.seq_len = kSeqLen;
    c.model.vocab_size = tokenizer_->vocab_size();
    c.model.token_types = 2;
    c.data.train = std::vector<std::string>{file(task)};
    c.data.valid = std::vector<std::string>{file(task)};
    c.optimizer.warmup_steps.reset();
  }
  std::unique_ptr<const tasks::TaskSet> open(const config::RunPlan& plan,
                                             tasks::SampleUse use = tasks::SampleUse::training) const {
    return tasks::open_task_set(*io::posix_fs(), plan.data.train.front(),
                                plan.task.set_config(plan.model.seq_len, plan.data.max_line), *tokenizer_, use);
  }

 private:
  static std::string word(int i) { return str(static_cast<char>('b' + i % 12), i < 12 ? "o" : "u"); }

  /// The class is that of the second sentence's last word.
  static std::string pairs(const std::vector<std::string>& labels) {
    const char* const last[] = {"here", "left", "not"};
    std::string text;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::size_t label = i * 7 % labels.size();
      text += str(R"({"sentence1": ")", word(static_cast<int>(i % 24)), ' ', word(static_cast<int>(i * 5 % 24)),
                  R"(", "sentence2": ")", word(static_cast<int>(i * 11 % 24)), ' ', last[label], R"(", "label": ")",
                  labels[label], "\"}\n");
    }
    return text;
  }
  /// The right option has the word "ann".
  static std::string race() {
    std::string text;
    for (int i = 0; i < 64; ++i) {
      text += str(R"({"id": ")", i % 2 == 0 ? "high" : "middle", i, R"(.txt", "article": ")", word(i % 24), " is ",
                  word(i * 5 % 24), R"(", "questions": ["who _ ?"], "answers": [")", static_cast<char>('A' + i * 3 % 4),
                  R"("], "options": [[)");
      for (int option = 0; option < 4; ++option)
        text += str(option == 0 ? "" : ", ", '"', option == i * 3 % 4 ? "ann" : word((i + option) % 24), '"');
      text += "]]}\n";
    }
    return text;
  }
  enum class Unanswered { none, every_fourth };
  /// The answer is the word after "the".
  static std::string squad(Unanswered unanswered) {
    std::string text = str(R"({"version": ")", unanswered == Unanswered::none ? "1.1" : "2.0",
                           R"(", "data": [{"title": "t", "paragraphs": [)");
    for (int i = 0; i < 64; ++i) {
      std::string context;
      for (int k = 0; k < i % 5; ++k) context += word((i + 3 * k) % 24) + ' ';
      const bool has_answer = unanswered == Unanswered::none || i % 4 != 3;
      context += has_answer ? "the " : "not ";
      const std::size_t begin = context.size();
      context += word(i * 5 % 24);
      text += str(i == 0 ? "" : ", ", R"({"context": ")", context, R"( is here", "qas": [{"id": "q)", i,
                  R"(", "question": "who ?", "answers": [)");
      if (has_answer) text += str(R"({"text": ")", word(i * 5 % 24), R"(", "answer_start": )", begin, '}');
      text += "]}]}";
    }
    return text + "]}]}";
  }

  TempDir dir_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
};

}  // namespace megalith::support
