#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/config/run_config.h"
#include "megalith/model/batch.h"

namespace megalith::support {

/// The optimizer of stored training steps, and data that is not read: batches are stored, too.
inline void set_stored_training(config::RunConfig& c, const nlohmann::json& adam) {
  c.optimizer.lr = adam.at("lr").get<double>();
  c.optimizer.decay = "constant";
  c.optimizer.weight_decay = adam.at("weight_decay").get<double>();
  c.optimizer.beta1 = adam.at("beta1").get<double>();
  c.optimizer.beta2 = adam.at("beta2").get<double>();
  c.optimizer.eps = adam.at("eps").get<double>();
  c.optimizer.clip = adam.at("clip").get<double>();
  c.data.tokenizer = "byte";
  c.data.train = std::vector<std::string>{"none"};
}

/// The stored batches, one a step: "tokens" and "targets" of each of `steps`, which must live as long.
class StoredBatches : public model::BatchSource {
 public:
  StoredBatches(const nlohmann::json& steps, Index batch, Index seq_len)
      : steps_(steps), samples_(batch), seq_len_(seq_len) {}
  void fill(Index first_sample, Index count, const model::Batch& batch) const override {
    const nlohmann::json& step = steps_.at(static_cast<std::size_t>(first_sample / samples_));
    const std::vector<std::int32_t> tokens = step.at("tokens"), targets = step.at("targets");
    const auto begin = static_cast<std::ptrdiff_t>(first_sample % samples_ * seq_len_),
               size = static_cast<std::ptrdiff_t>(count * seq_len_);
    std::copy(tokens.begin() + begin, tokens.begin() + begin + size, batch.tokens.begin());
    std::copy(targets.begin() + begin, targets.begin() + begin + size, batch.targets.begin());
  }

 private:
  const nlohmann::json& steps_;
  Index samples_, seq_len_;
};

}  // namespace megalith::support
