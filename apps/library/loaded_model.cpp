#include "apps/library/loaded_model.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"

#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

/// The shapes of lists of 2 to `max_tokens` + 1 ids, each as often as a batch takes.
eval::PassCounts list_shapes(Index max_tokens, Index batch) {
  eval::PassCounts counts;
  for (Index tokens = 1; tokens <= max_tokens; ++tokens) counts[eval::pass_shape(tokens, tokens, max_tokens)] = batch;
  return counts;
}

}  // namespace

LoadedModel::LoadedModel(const InferenceOptions& options, const std::string& vocab_dir) {
  std::future<void> opened = opened_.get_future();
  thread_ = std::thread([this, options, vocab_dir] { run(options, vocab_dir); });
  try {
    opened.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

LoadedModel::~LoadedModel() {
  {
    const std::lock_guard lock(mutex_);
    is_closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void LoadedModel::run(const InferenceOptions& options, const std::string& vocab_dir) {
  const Launcher alone;  // the process may be of a launcher's, but the model is on one rank
  bool is_open = false;
  std::exception_ptr error;
  try {
    const auto shape = [&] {
      const std::shared_ptr<io::Fs> fs = rank_fs(0);
      job_.emplace(fs, options, alone,
                   [&](const InferenceJob& job) { refuse_masked_model(options.checkpoint, job.plan().model); });
      tokenizer_ = job_->tokenizer(vocab_dir);
      return shape_of(job_->plan());
    };
    const auto body = [&](comm::World& world) {
      is_open = true;
      opened_.set_value();
      serve(world);
    };
    run_job(alone, {.shape = shape, .body = body});
  } catch (...) {
    error = std::current_exception();
  }
  if (!is_open) return opened_.set_exception(error);
  const std::lock_guard lock(mutex_);
  has_ended_ = true;
  error_ = error;
  requests_.clear();  // their futures throw
}

void LoadedModel::serve(comm::World& world) {
  Workplace place{.world = world, .mesh = comm::make_mesh(world, job_->plan().grid, job_->plan().transfers)};
  for (;;) {
    std::packaged_task<void(Workplace&)> next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return is_closing_ || !requests_.empty(); });
      if (requests_.empty()) return;
      next = std::move(requests_.front());
      requests_.pop_front();
    }
    next(place);
  }
}

void LoadedModel::request(Work work) {
  std::packaged_task<void(Workplace&)> task(std::move(work));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    if (has_ended_) {
      if (error_) std::rethrow_exception(error_);
      throw InternalError("[LoadedModel] the model's thread has ended");
    }
    requests_.push_back(std::move(task));
  }
  changed_.notify_all();
  done.get();
}

void LoadedModel::require_ids(std::span<const std::int32_t> ids, const std::string& what) const {
  const model::ModelConfig& model = job_->plan().model;
  const Index count = std::ssize(ids);
  if (count < 1 || count > model.seq_len)
    throw InputError(str(what, " of ", count, " ids: must be of 1 to ", model.seq_len, ", the model's seq_len"));
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= model.vocab_size)
      throw InputError(str(what, ", id ", i, " = ", ids[i], ": must be from 0 to ", model.vocab_size - 1,
                           ", the model's vocabulary"));
}

eval::InferenceModel& LoadedModel::scorer(Workplace& place) const {
  if (place.scorer) return *place.scorer;
  const eval::InferenceConfig config =
      job_->config({{nn::Result::losses}}, std::max<Index>(job_->plan().model.seq_len - 1, 1));
  try {
    place.scorer.emplace(config, place.world, place.mesh, list_shapes(config.model.seq_len, job_->batch()));
    job_->load(place.world, *place.scorer);
  } catch (...) {
    place.scorer.reset();
    throw;
  }
  return *place.scorer;
}

std::vector<std::vector<double>> LoadedModel::log_probabilities(std::span<const std::span<const std::int32_t>> lists) {
  std::vector<eval::Passage> passages;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    require_ids(lists[i], str("list ", i));
    if (lists[i].size() < 2) continue;
    passages.push_back({lists[i]});
    numbers.push_back(i);
  }
  std::vector<std::vector<double>> found(lists.size());
  if (passages.empty()) return found;
  request([&](Workplace& place) {
    scorer(place).score(passages, [&](Index passage, eval::PassageScore score) {
      found[numbers[static_cast<std::size_t>(passage)]] = std::move(score.log_probabilities);
    });
  });
  return found;
}

eval::Decoder& LoadedModel::decoder(Workplace& place) const {
  if (place.decoder) return *place.decoder;
  const config::RunPlan& plan = job_->plan();
  try {
    place.decoder.emplace(eval::DecoderConfig{.model = plan.model,
                                              .dtype = plan.train.policy().compute,
                                              .device = plan.device,
                                              .slots = 1,
                                              .capacity = plan.model.seq_len,
                                              .steps = eval::steps_for(
                                                  plan.model, {plan.device, plan.train.policy().compute, plan.grid})},
                          place.world, place.mesh);
    job_->load(place.world, *place.decoder);
    place.decoder->warm_up();
  } catch (...) {
    place.decoder.reset();
    throw;
  }
  return *place.decoder;
}

void LoadedModel::generate(const eval::TextRequest& text, eval::GenerateOptions options, const TakeToken& take) {
  require_ids(text.prompt, "prompt");
  const Index capacity = job_->plan().model.seq_len;
  Problems problems;
  problems.require(options.max_tokens >= 0, "max_tokens", options.max_tokens, "must be at least 0");
  problems.require(options.temperature >= 0, "temperature", options.temperature, "must be at least 0");
  problems.require(options.top_k >= 0, "top_k", options.top_k, "must be at least 0");
  problems.require(options.top_p > 0 && options.top_p <= 1, "top_p", options.top_p, "must be in (0, 1]");
  problems.require(options.slide >= 1 && options.slide <= capacity, "slide", options.slide,
                   str("must be 1 to model.seq_len = ", capacity));
  problems.require(text.sample >= 0, "sample", text.sample, "must be at least 0");
  problems.throw_if_any("generate");
  request([&](Workplace& place) {
    eval::generate(decoder(place), {&text, 1}, options,
                   {.token = [&](std::size_t, std::int32_t id) { return take(id); }});
  });
}

}  // namespace megalith::apps
