#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/io/checksum.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

#include "apps/eval/inference.h"
#include "apps/eval/masked_score.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

/// Reads [[15496, 995], ...] and passes on one list after the other, so that only one is in memory. Other content is
/// kept for finish().
class ListReader final : public io::JsonVisitor {
 public:
  using Take = std::function<void(std::span<const std::int32_t>)>;
  ListReader(const std::string& file, const model::ModelConfig& model, Take take)
      : file_(file), model_(model), take_(std::move(take)) {}

  void start_array() override {
    if (depth_ == kInList) refuse_token("a list");
    ++depth_;
  }
  void end_array() override {
    if (--depth_ != 1) return;
    if (!is_bad_ && (length_ == 0 || length_ > model_.seq_len)) refuse_list(str(" of ", length_, " tokens"));
    if (!is_bad_) take_(ids_);
    next_list();
  }
  void count(std::uint64_t value) override {
    if (depth_ != kInList || value >= static_cast<std::uint64_t>(model_.vocab_size))
      return other(std::to_string(value));
    if (++length_ <= model_.seq_len) ids_.push_back(static_cast<std::int32_t>(value));
  }
  void other(std::string_view shown) override {
    if (depth_ == 0) throw InputError(str("[", file_, "] must be a list of lists of token ids, as [[15496, 995]]"));
    if (depth_ == kInList) refuse_token(shown);
    if (depth_ != 1) return;  // within refused content
    refuse_list(str(" = ", shown));
    next_list();
  }
  void text(std::string& value) override { other(str('"', io::printable(value), '"')); }
  void start_object() override {
    other("an object");
    depth_ += kObject;
  }
  void end_object() override { depth_ -= kObject; }
  void key(std::string& /*name*/) override {}

  /// Throws InputError with all refused content, and with `error`, which ended the reading (empty: none).
  void finish(std::string_view error) const {
    io::throw_file_problems(file_, problems_, count_ - std::ssize(problems_), error);
  }

 private:
  static constexpr Index kInList = 2;               // the depth of tokens
  static constexpr Index kObject = Index{1} << 32;  // deeper than any list
  static constexpr std::size_t kShown = 20;

  void next_list() {
    ids_.clear();
    length_ = 0;
    is_bad_ = false;
    ++lists_;
  }
  /// Reports one problem per list.
  void refuse(std::string problem) {
    if (is_bad_) return;
    is_bad_ = true;
    ++count_;
    if (problems_.size() < kShown) problems_.push_back(std::move(problem));
  }
  void refuse_list(std::string_view what) {
    refuse(str("[", file_, "] list ", lists_, what, ": must be a list of 1 to ", model_.seq_len,
               " ids, the model's seq_len"));
  }
  void refuse_token(std::string_view what) {
    refuse(str("[", file_, "] list ", lists_, ", token ", length_, " = ", what, ": must be a whole number from 0 to ",
               model_.vocab_size - 1));
  }

  const std::string& file_;
  const model::ModelConfig& model_;
  Take take_;
  Index depth_ = 0;
  Index lists_ = 0, length_ = 0;  // lists before this one; its tokens so far
  bool is_bad_ = false;           // this list
  std::vector<std::int32_t> ids_;
  std::vector<std::string> problems_;
  Index count_ = 0;  // number of problems
};

/// Lists that are scored together.
constexpr std::size_t kListsAtOnce = 4096;
constexpr Index kTokensAtOnce = Index{1} << 20;

/// Lists of a file: their maximum size, and their scores one group after another, so that only one group is in memory.
class ListScorer {
 public:
  ListScorer(const io::MappedFile& file, const std::string& name, const model::ModelConfig& model)
      : file_(file), name_(name), model_(model) {}

  /// Checks the whole file. Returns the number of tokens of the longest list. Throws InputError.
  Index check() {
    Index longest = 0;
    read([&](auto ids) { longest = std::max(longest, static_cast<Index>(ids.size())); });
    return longest;
  }
  eval::PassCounts counts(Index max_tokens) const {
    eval::PassCounts counts;
    read([&](auto ids) {
      const eval::Passage passage{ids};
      if (ids.size() > 1) ++counts[eval::PassageSamples({&passage, 1}, max_tokens).shape(0)];
    });
    return counts;
  }
  /// Prints {"logprobs": [[null, ln p, ...], ...]} on rank 0. Collective.
  void print(eval::InferenceModel& model, int rank) const {
    bool first = true;
    if (rank == 0) std::fputs("{\"logprobs\":[", stdout);
    score(model, rank, [&](const std::vector<double>& logprobs) {
      nlohmann::json row = {nullptr};  // the first token has nothing before it
      for (const double logprob : logprobs) row.push_back(logprob);
      std::printf("%s%s", first ? "" : ",", row.dump().c_str());
      first = false;
    });
    if (rank == 0) std::puts("]}");
  }

 private:
  /// Calls print(log-probabilities) for every list, in order, on rank 0. Collective.
  template <class Print>
  void score(eval::InferenceModel& model, int rank, const Print& print) const {
    std::vector<std::vector<std::int32_t>> lists;
    Index tokens = 0;
    const auto flush = [&] {
      score_group(model, rank, lists, print);
      lists.clear();
      tokens = 0;
    };
    read([&](auto ids) {
      lists.emplace_back(ids.begin(), ids.end());
      tokens += static_cast<Index>(ids.size());
      if (lists.size() == kListsAtOnce || tokens >= kTokensAtOnce) flush();
    });
    flush();
  }
  void read(ListReader::Take take) const {
    ListReader lists(name_, model_, std::move(take));
    std::string error;
    try {
      io::visit_json(file_.text(), {.name = name_}, lists);
    } catch (const InputError& bad) {
      error = bad.what();
    }
    lists.finish(error);
  }
  template <class Print>
  static void score_group(eval::InferenceModel& model, int rank, const std::vector<std::vector<std::int32_t>>& lists,
                          const Print& print) {
    std::vector<eval::Passage> passages;
    std::vector<std::size_t> numbers;
    for (std::size_t i = 0; i < lists.size(); ++i) {
      if (lists[i].size() < 2) continue;
      passages.push_back({lists[i]});
      numbers.push_back(i);
    }
    std::vector<std::vector<double>> scores(lists.size());
    model.score(passages, [&](Index passage, eval::PassageScore score) {
      scores[numbers[static_cast<std::size_t>(passage)]] = std::move(score.log_probabilities);
    });
    if (rank == 0) std::ranges::for_each(scores, print);
  }

  const io::MappedFile& file_;
  const std::string& name_;
  const model::ModelConfig& model_;
};

void run_score(const InferenceOptions& options, const std::string& file) {
  const Launcher launcher = detect_launcher();
  const std::shared_ptr<io::Fs> fs = rank_fs(launcher.process);
  std::optional<InferenceJob> job;
  io::MappedFile mapped;
  Index longest = 0;
  const auto shape = [&] {
    data::require_file(*fs, file, "--tokens");
    job.emplace(fs, options, launcher);
    JobShape needed = shape_of(job->plan());
    needed.start = train::Start::fresh;
    return needed;
  };
  const auto read = [&] {
    mapped = fs->map(file);
    if (job->plan().model.is_bert())
      MaskedScorer(mapped, file, job->plan().model).check();
    else
      longest = ListScorer(mapped, file, job->plan().model).check();
  };
  const auto found = [&] {
    train::Facts facts = job->facts();
    facts.emplace_back("--tokens", io::checksum(mapped.bytes()).hex());
    return facts;
  };
  const auto body = [&](comm::World& world) {
    const comm::Mesh mesh = comm::make_mesh(world, job->plan().grid, job->plan().transfers);
    const model::ModelConfig& own = job->plan().model;
    std::string digest;
    if (own.is_bert()) {
      const MaskedScorer samples(mapped, file, own);
      eval::InferenceModel model(job->config(samples.asked(), own.seq_len), world, mesh, samples.counts());
      digest = job->load(world, model);
      samples.print(model, world.rank());
    } else {
      const eval::InferenceConfig config = job->config({{nn::Result::losses}}, std::max<Index>(longest - 1, 1));
      const ListScorer lists(mapped, file, own);
      eval::InferenceModel model(config, world, mesh, lists.counts(config.model.seq_len));
      digest = job->load(world, model);
      lists.print(model, world.rank());
    }
    if (world.rank() != 0) return;
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw IoError("[standard output] write failed");
    log::info(str(job->precision(), " on ", name_of(job->plan().device), ", ", config::grid_text(job->plan()),
                  "; checkpoint ", job->folder().string(), " (", digest, ")"));
  };
  run_job(launcher, {.shape = shape, .read = read, .found = found, .body = body});
}

}  // namespace

void add_score(CLI::App& program) {
  struct Options {
    InferenceOptions model;
    std::string tokens;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = program.add_subcommand("score",
                                             "Print the natural log-probability of every token of every list, given "
                                             "those before it; of BERT, of every target, "
                                             "and of both orders of each sample");
  add_model(*command, options->model);
  options->model.add_to(*command);
  add_batch(*command, options->model.batch);
  command
      ->add_option("--tokens", options->tokens,
                   "JSON file: a list of lists of token ids; of BERT JSON lines {\"ids\", \"types\", \"targets\"} "
                   "(docs/bert.md)")
      ->required();
  command->callback([options] { run_score(options->model, options->tokens); });
}

}  // namespace megalith::apps
