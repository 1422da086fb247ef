#include "megalith/train/run_data.h"

#include <algorithm>
#include <tuple>

#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/io/file_problems.h"
#include "megalith/train/run_batches.h"

namespace megalith::train {
namespace {

constexpr const char* kValid = "valid";  // the name of a held-out set

/// A corpus, or the one of a held-out set.
template <class Set>
RunData::Facts facts_of(const Set& set) {
  if constexpr (requires { set.source(); })
    return {set.source().name(), set.source().num_tokens(), set.count(), set.source().fingerprint()};
  else
    return {set.name(), set.num_tokens(), set.count(), set.fingerprint()};
}

/// Samples to train on, and held-out ones. Order: what decides the order of the first besides them, as a seed.
template <class Sets, class Train, class Valid, class... Order>
class SampleData final : public RunData {
 public:
  explicit SampleData(Sets sets, Order... order) : sets_(std::move(sets)), order_(order...) {}
  Facts train() const override { return facts_of(sets_.train); }
  Facts valid() const override { return sets_.valid ? facts_of(*sets_.valid) : Facts(); }
  std::unique_ptr<model::BatchSource> train_batches() const override {
    return std::apply([&](const Order&... order) { return std::make_unique<Train>(sets_.train, order...); }, order_);
  }
  std::vector<HeldOut> held_out() const override {
    std::vector<HeldOut> sets;
    if (sets_.valid) sets.push_back({kValid, sets_.valid->count(), std::make_unique<Valid>(*sets_.valid)});
    return sets;
  }
  const data::DataNotes& notes() const override { return sets_.notes; }

 private:
  Sets sets_;
  std::tuple<Order...> order_;
};
using TextData = SampleData<data::DataSets, TrainBatches, HeldOutBatches, std::uint64_t>;
using BertData = SampleData<data::BertDataSets, BertTrainBatches, BertHeldOutBatches>;  // the sets have the seed
using ChatData = SampleData<data::ChatDataSets, ChatTrainBatches, ChatHeldOutBatches, std::uint64_t>;

/// Of each file its name without its ending. If two share it, all have their whole paths.
std::vector<std::string> names_of(const std::vector<std::string>& files) {
  if (files.size() == 1) return {kValid};
  std::vector<std::string> names;
  for (const std::string& file : files) {
    const std::string stem = io::Path(file).stem().string();
    if (std::ranges::find(names, stem) != names.end()) return files;
    names.push_back(stem);
  }
  return names;
}

/// The files of a task: one to train on, and held-out ones that each have a score of their own.
class TaskData final : public RunData {
 public:
  TaskData(io::Fs& fs, const config::RunPlan& plan, const tokenizer::Tokenizer& tokenizer)
      : seed_(plan.train.seed), global_batch_(plan.train.global_batch), name_(plan.data.train.front()) {
    io::SeveralFiles files;
    const auto open = [&](const std::string& file, std::string_view key, tasks::SampleUse use) {
      const auto config = plan.task.set_config(plan.model.seq_len, plan.data.max_line, key);
      auto set = files.read([&] { return tasks::open_task_set(fs, file, config, tokenizer, use); }).value_or(nullptr);
      if (set == nullptr) return set;
      if (const std::string rows = set->left_out(); !rows.empty())
        notes_.left_out.push_back(str(key, ": ", file, ": ", rows));
      return set;
    };
    train_ = open(name_, "data.train", tasks::SampleUse::training);
    const std::vector<std::string> names = names_of(plan.data.valid);
    for (std::size_t i = 0; i < names.size(); ++i)
      valid_.push_back({names[i], open(plan.data.valid[i], "data.valid", tasks::SampleUse::scoring)});
    files.throw_if_any();
  }
  Facts train() const override { return {name_, train_->num_tokens(), train_->count(), train_->fingerprint()}; }
  Facts valid() const override {
    Facts facts;
    for (const auto& [name, set] : valid_) {
      facts.name += str(facts.name.empty() ? "" : ", ", name);
      facts.tokens += set->num_tokens();
      facts.samples += set->count();
      facts.fingerprint = hash_combine(facts.fingerprint, set->fingerprint());
    }
    return facts;
  }
  std::unique_ptr<model::BatchSource> train_batches() const override {
    return std::make_unique<TaskTrainBatches>(*train_, seed_, global_batch_);
  }
  std::vector<HeldOut> held_out() const override {
    std::vector<HeldOut> sets;
    for (const auto& [name, set] : valid_)
      sets.push_back(
          {name, set->count(), std::make_unique<TaskHeldOutBatches>(*set),
           [set = set.get()](std::span<const float> numbers) { return set->figures(set->predict(numbers)); }});
    return sets;
  }
  const data::DataNotes& notes() const override { return notes_; }

 private:
  std::uint64_t seed_;
  Index global_batch_;
  std::string name_;
  std::unique_ptr<const tasks::TaskSet> train_;
  std::vector<std::pair<std::string, std::unique_ptr<const tasks::TaskSet>>> valid_;
  data::DataNotes notes_;
};

}  // namespace

std::unique_ptr<const RunData> open_run_data(io::Fs& fs, const config::RunPlan& plan,
                                             const tokenizer::Tokenizer& tokenizer, int threads) {
  if (plan.model.task) return std::make_unique<TaskData>(fs, plan, tokenizer);
  if (plan.data.format == data::DataFormat::chat) {
    return std::make_unique<ChatData>(data::open_chat_data(fs, plan.data, tokenizer, plan.model.seq_len),
                                      plan.train.seed);
  }
  if (plan.model.is_bert()) {
    return std::make_unique<BertData>(
        data::open_bert_data(fs, plan.data, tokenizer, {plan.model.bert, plan.train.seed}, threads));
  }
  return std::make_unique<TextData>(data::open_data(fs, plan.data, tokenizer, plan.model.seq_len, threads),
                                    plan.train.seed);
}

}  // namespace megalith::train
