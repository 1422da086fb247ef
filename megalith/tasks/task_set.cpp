#include "megalith/tasks/task_set.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/tasks/squad_answers.h"
#include "megalith/tasks/squad_windows.h"

namespace megalith::tasks {
namespace {

/// Texts as ids, one after another.
class TokenizedTexts {
 public:
  void add(std::span<const std::int32_t> ids) {
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    ends_.push_back(ids_.size());
  }
  std::span<const std::int32_t> operator[](Index text) const {
    const auto i = static_cast<std::size_t>(text);
    const std::size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::span(ids_).subspan(begin, ends_[i] - begin);
  }

 private:
  std::vector<std::int32_t> ids_;
  std::vector<std::size_t> ends_;
};

/// Writes sequence number `sequence` of a sample.
void put_sequence(const PairSample& made, std::size_t sequence, const TaskSample& out) {
  const auto at = static_cast<std::ptrdiff_t>(sequence * made.tokens.size());
  std::ranges::copy(made.tokens, out.tokens.begin() + at);
  std::ranges::copy(made.types, out.types.begin() + at);
  out.lengths[sequence] = static_cast<std::int32_t>(made.length);
}

/// The first of the largest of the `classes` numbers of a sample.
int likeliest(std::span<const float> numbers, Index sample, Index classes) {
  const auto of = numbers.subspan(static_cast<std::size_t>(sample * classes), static_cast<std::size_t>(classes));
  return static_cast<int>(std::ranges::max_element(of) - of.begin());
}

class PairTaskSet final : public TaskSet {
 public:
  PairTaskSet(PairSet set, const TaskSetConfig& config, const tokenizer::Tokenizer& tokenizer)
      : TaskSet(config), set_(std::move(set)), frame_(frame_tokens(tokenizer)) {
    for (const PairExample& example : set_.examples) {
      texts_.add(tokenizer.encode(example.first));
      texts_.add(tokenizer.encode(example.second));
    }
  }
  Index count() const override { return std::ssize(set_.examples); }
  Index numbers() const override { return std::ssize(classes_of(config().task)); }
  void make(Index sample, const TaskSample& out) const override {
    put_sequence(
        make_pair_sample(texts_[2 * sample], texts_[2 * sample + 1], frame_, config().seq_len, Shortened::longer), 0,
        out);
    out.labels[0] = set_.examples[static_cast<std::size_t>(sample)].label;
  }
  TaskPredictions predict(std::span<const float> numbers) const override {
    TaskPredictions predictions;
    for (Index i = 0; i < count(); ++i)
      predictions.classes[set_.examples[static_cast<std::size_t>(i)].id] = likeliest(numbers, i, this->numbers());
    return predictions;
  }
  Figures figures(const TaskPredictions& predictions) const override { return pair_figures(set_, predictions.classes); }
  Figures counts() const override { return {{"examples", count()}, {"left_out", set_.left_out}}; }
  std::string left_out() const override { return set_.left_out_text(); }
  std::string prediction_file(const TaskPredictions& predictions) const override {
    std::string text = "index\tprediction\n";
    for (const PairExample& example : set_.examples)
      text += str(example.id, '\t',
                  classes_of(config().task)[static_cast<std::size_t>(predictions.classes.at(example.id))], '\n');
    return text;
  }

 private:
  PairSet set_;
  FrameTokens frame_;
  TokenizedTexts texts_;  // first and second sentence of each example
};

class RaceTaskSet final : public TaskSet {
 public:
  RaceTaskSet(RaceSet set, const TaskSetConfig& config, const tokenizer::Tokenizer& tokenizer)
      : TaskSet(config), set_(std::move(set)), frame_(frame_tokens(tokenizer)) {
    if (config.max_query < 1 || config.max_query + 3 >= config.seq_len)
      throw ConfigError(str("task.max_query = ", config.max_query, ": must be 1 or more, and with 3 tokens below ",
                            "model.seq_len = ", config.seq_len));
    for (const RaceArticle& article : set_.articles) articles_.add(tokenizer.encode(article.text));
    for (const RaceQuestion& question : set_.questions) {
      for (const std::string& option : question.options) {
        const std::vector<std::int32_t> ids = tokenizer.encode(race_query(question, option));
        queries_.add(std::span(ids).first(std::min(ids.size(), static_cast<std::size_t>(config.max_query))));
      }
    }
  }
  Index count() const override { return std::ssize(set_.questions); }
  Index sequences() const override { return kRaceOptions; }
  Index numbers() const override { return kRaceOptions; }
  void make(Index sample, const TaskSample& out) const override {
    const RaceQuestion& question = set_.questions[static_cast<std::size_t>(sample)];
    for (Index option = 0; option < kRaceOptions; ++option) {
      put_sequence(make_pair_sample(articles_[question.article], queries_[kRaceOptions * sample + option], frame_,
                                    config().seq_len, Shortened::first),
                   static_cast<std::size_t>(option), out);
    }
    out.labels[0] = question.answer;
  }
  TaskPredictions predict(std::span<const float> numbers) const override {
    TaskPredictions predictions;
    for (Index i = 0; i < count(); ++i)
      predictions.classes[set_.questions[static_cast<std::size_t>(i)].id] = likeliest(numbers, i, kRaceOptions);
    return predictions;
  }
  Figures figures(const TaskPredictions& predictions) const override { return race_figures(set_, predictions.classes); }
  Figures counts() const override { return {{"articles", std::ssize(set_.articles)}, {"questions", count()}}; }
  std::string prediction_file(const TaskPredictions& predictions) const override {
    std::vector<nlohmann::ordered_json> articles;
    for (const RaceArticle& article : set_.articles)
      articles.push_back({{"id", article.id}, {"answers", nlohmann::ordered_json::array()}});
    for (const RaceQuestion& question : set_.questions)
      articles[static_cast<std::size_t>(question.article)]["answers"].push_back(
          classes_of(Task::race)[static_cast<std::size_t>(predictions.classes.at(question.id))]);
    std::string text;
    for (const nlohmann::ordered_json& article : articles) text += article.dump() + '\n';
    return text;
  }

 private:
  RaceSet set_;
  FrameTokens frame_;
  TokenizedTexts articles_, queries_;  // a query for each option of each question
};

class SquadTaskSet final : public TaskSet {
 public:
  SquadTaskSet(SquadSet set, const TaskSetConfig& config, const tokenizer::Tokenizer& tokenizer, SampleUse use)
      : TaskSet(config),
        set_(std::move(set)),
        windows_(set_, tokenizer,
                 {.seq_len = config.seq_len, .max_query = config.max_query, .doc_stride = config.doc_stride}) {
    for (Index window = 0; window < std::ssize(windows_.windows()); ++window)
      if (use == SampleUse::scoring || windows_.label(window)) used_.push_back(window);
  }
  Index count() const override { return std::ssize(used_); }
  Index labels() const override { return 2; }
  Index numbers() const override { return 2 * config().seq_len; }
  void make(Index sample, const TaskSample& out) const override {
    const Index window = used_[static_cast<std::size_t>(sample)];
    put_sequence(windows_.sample(window), 0, out);
    const std::optional<SpanLabel> label = windows_.label(window);
    out.labels[0] = label ? static_cast<std::int32_t>(label->start) : -1;
    out.labels[1] = label ? static_cast<std::int32_t>(label->end) : -1;
  }
  TaskPredictions predict(std::span<const float> numbers) const override {
    TaskPredictions predictions;
    const auto seq_len = static_cast<std::size_t>(config().seq_len);
    const auto logits_of = [&](Index window) {
      const auto of = numbers.subspan(static_cast<std::size_t>(window) * 2 * seq_len, 2 * seq_len);
      return SpanLogits{.start = of.first(seq_len), .end = of.last(seq_len)};
    };
    for (std::size_t q = 0; q < set_.questions.size(); ++q) {
      const SquadPrediction answer =
          answer_question(windows_, static_cast<Index>(q), {.task = config().task}, logits_of);
      predictions.texts[set_.questions[q].id] = answer.text;
      if (config().task == Task::squad2)
        predictions.no_answer.emplace_back(set_.questions[q].id, answer.no_answer_score);
    }
    return predictions;
  }
  Figures figures(const TaskPredictions& predictions) const override {
    return squad_figures(set_, config().task, predictions.texts, predictions.no_answer);
  }
  Figures counts() const override {
    return {{"contexts", std::ssize(set_.contexts)}, {"questions", std::ssize(set_.questions)}, {"windows", count()}};
  }
  std::string prediction_file(const TaskPredictions& predictions) const override {
    nlohmann::ordered_json json = nlohmann::ordered_json::object();
    for (const SquadQuestion& question : set_.questions) json[question.id] = predictions.texts.at(question.id);
    return json.dump() + '\n';
  }

 private:
  SquadSet set_;
  SquadWindows windows_;
  std::vector<Index> used_;  // of windows_
};

std::unique_ptr<TaskSet> make_task_set(io::Fs& fs, const io::Path& path, const TaskSetConfig& config,
                                       const tokenizer::Tokenizer& tokenizer, SampleUse use) {
  switch (config.task) {
    case Task::mnli:
    case Task::qqp:
      return std::make_unique<PairTaskSet>(
          read_pairs(fs, path, config.task, Labels::required, config.max_line, config.setting), config, tokenizer);
    case Task::squad1:
    case Task::squad2:
      return std::make_unique<SquadTaskSet>(read_squad(fs, path, config.task, config.setting), config, tokenizer, use);
    case Task::race:
      return std::make_unique<RaceTaskSet>(read_race(fs, path, config.max_line, config.setting), config, tokenizer);
  }
  throw InternalError("[open_task_set] task: is none of those that there are");
}

}  // namespace

void TaskSet::identify() {
  const auto tokens = static_cast<std::size_t>(sequences() * config_.seq_len);
  std::vector<std::int32_t> memory(2 * tokens + static_cast<std::size_t>(sequences() + labels()));
  const std::span all(memory);
  const TaskSample sample{.tokens = all.first(tokens),
                          .types = all.subspan(tokens, tokens),
                          .lengths = all.subspan(2 * tokens, static_cast<std::size_t>(sequences())),
                          .labels = all.last(static_cast<std::size_t>(labels()))};
  const auto add = [&](std::span<const std::int32_t> ids) {
    fingerprint_ = fnv1a({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()}, fingerprint_);
  };
  fingerprint_ = fnv1a(name_of(config_.task));
  for (Index i = 0; i < count(); ++i) {
    make(i, sample);
    for (std::size_t s = 0; s < sample.lengths.size(); ++s) {
      const auto length = static_cast<std::size_t>(sample.lengths[s]);
      num_tokens_ += sample.lengths[s];
      add(sample.tokens.subspan(s * static_cast<std::size_t>(config_.seq_len), length));
    }
    add(sample.labels);
  }
}

std::unique_ptr<const TaskSet> open_task_set(io::Fs& fs, const io::Path& path, const TaskSetConfig& config,
                                             const tokenizer::Tokenizer& tokenizer, SampleUse use) {
  std::unique_ptr<TaskSet> set = make_task_set(fs, path, config, tokenizer, use);
  if (set->count() == 0)
    throw InputError(str("[", path.string(),
                         "] no question has an answer whose place is known: there is nothing to "
                         "train on"));
  set->identify();
  return set;
}

}  // namespace megalith::tasks
