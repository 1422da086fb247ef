#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "megalith/eval/generate.h"
#include "megalith/eval/inference_model.h"

#include "apps/eval/inference.h"

namespace megalith::apps {

/// A saved model that is open, on one rank: a thread of its own computes one request after another. Any thread may call
/// any function.
class LoadedModel {
 public:
  /// Reads no values. Throws the errors of InferenceJob, and ConfigError for a masked language model.
  LoadedModel(const InferenceOptions& options, const std::string& vocab_dir);
  /// Waits for the requests that were made.
  ~LoadedModel();
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const InferenceJob& job() const { return *job_; }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }

  /// ln p of each token of a list but the first, list after list. The first call reads the values of the parameters.
  /// Throws InputError for lists that are empty, longer than seq_len, or have ids that the model lacks.
  std::vector<std::vector<double>> log_probabilities(std::span<const std::span<const std::int32_t>> lists);

  /// Returns whether the text goes on. Called by the model's thread.
  using TakeToken = std::function<bool(std::int32_t id)>;
  /// The first call reads the values of the parameters, into memory of its own. Throws InputError and ConfigError.
  void generate(const eval::TextRequest& text, eval::GenerateOptions options, const TakeToken& take);

 private:
  /// What the model's thread computes with.
  struct Workplace {
    comm::World& world;
    comm::Mesh mesh;
    std::optional<eval::InferenceModel> scorer = {};
    std::optional<eval::Decoder> decoder = {};
  };
  using Work = std::function<void(Workplace&)>;

  void run(const InferenceOptions& options, const std::string& vocab_dir);
  void serve(comm::World& world);
  /// Runs `work` on the model's thread. Throws what it throws, and the error that ended the thread.
  void request(Work work);
  void require_ids(std::span<const std::int32_t> ids, const std::string& what) const;
  eval::InferenceModel& scorer(Workplace& place) const;
  eval::Decoder& decoder(Workplace& place) const;

  std::optional<InferenceJob> job_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::deque<std::packaged_task<void(Workplace&)>> requests_;
  bool is_closing_ = false, has_ended_ = false;
  std::exception_ptr error_;  // that ended the thread
  std::promise<void> opened_;
  std::thread thread_;
};

}  // namespace megalith::apps
