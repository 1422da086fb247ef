#include "megalith/data/bert_training_set.h"

#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::data {
namespace {

Blend blend_of(const std::vector<BertTrainingSet::Corpus>& corpora) {
  if (corpora.empty()) throw InternalError("[bert_training_set] no corpus");
  std::vector<double> weights;
  for (const BertTrainingSet::Corpus& corpus : corpora) weights.push_back(corpus.weight);
  return Blend(weights);
}

}  // namespace

BertTrainingSet::BertTrainingSet(std::vector<Corpus> corpora, std::uint64_t seed)
    : corpora_(std::move(corpora)), blend_(blend_of(corpora_)) {
  for (const Corpus& corpus : corpora_) {
    const std::uint64_t own = orders_.empty() ? seed : hash_combine(seed, orders_.size());
    orders_.push_back(SampleOrder::shuffled(own, corpus.samples.count()));
    const std::string& file = corpus.samples.source().name();
    name_ += corpora_.size() == 1 ? file : str(name_.empty() ? "" : ", ", exact(corpus.weight), " ", file);
  }
}

Index BertTrainingSet::count() const {
  Index sum = 0;
  for (const Corpus& corpus : corpora_) sum += corpus.samples.count();
  return sum;
}

Index BertTrainingSet::num_tokens() const {
  Index sum = 0;
  for (const Corpus& corpus : corpora_) sum += corpus.samples.source().num_tokens();
  return sum;
}

std::uint64_t BertTrainingSet::fingerprint() const {
  std::uint64_t hash = fnv1a("bert");
  for (std::size_t i = 0; i < corpora_.size(); ++i) {
    hash = hash_combine(hash, corpora_[i].samples.source().fingerprint());
    hash = hash_combine(hash, static_cast<std::uint64_t>(blend_.quota(static_cast<int>(i))));
  }
  return hash;
}

void BertTrainingSet::make(Index n, BertSample& out) const {
  const Blend::Draw draw = blend_.at(n);
  const auto corpus = static_cast<std::size_t>(draw.corpus);
  corpora_[corpus].samples.make(orders_[corpus].epoch(draw.n), orders_[corpus].sample(draw.n), out);
}

}  // namespace megalith::data
