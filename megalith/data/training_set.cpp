#include "megalith/data/training_set.h"

#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::data {
namespace {

std::vector<double> weights_of(const std::vector<TrainingSet::Corpus>& corpora) {
  if (corpora.empty()) throw InternalError("[training_set] no corpus");
  std::vector<double> weights;
  for (const TrainingSet::Corpus& corpus : corpora) weights.push_back(corpus.weight);
  return weights;
}

}  // namespace

TrainingSet::TrainingSet(std::vector<Corpus> corpora)
    : corpora_(std::move(corpora)), blend_(weights_of(corpora_)), name_(corpora_.front().samples.source().name()) {
  if (corpora_.size() == 1) return;
  name_.clear();
  for (const Corpus& corpus : corpora_)
    name_ += str(name_.empty() ? "" : ", ", exact(corpus.weight), " ", corpus.samples.source().name());
}

Index TrainingSet::count() const {
  Index sum = 0;
  for (const Corpus& corpus : corpora_) sum += corpus.samples.count();
  return sum;
}

Index TrainingSet::num_tokens() const {
  Index sum = 0;
  for (const Corpus& corpus : corpora_) sum += corpus.samples.source().num_tokens();
  return sum;
}

std::uint64_t TrainingSet::fingerprint() const {
  std::uint64_t hash = corpora_.front().samples.source().fingerprint();
  if (corpora_.size() == 1) return hash;
  for (std::size_t i = 0; i < corpora_.size(); ++i) {
    if (i > 0) hash = hash_combine(hash, corpora_[i].samples.source().fingerprint());
    hash = hash_combine(hash, static_cast<std::uint64_t>(blend_.quota(static_cast<int>(i))));
  }
  return hash;
}

TrainingOrder::TrainingOrder(const TrainingSet& set, std::uint64_t seed) : set_(set) {
  for (const TrainingSet::Corpus& corpus : set.corpora()) {
    const std::uint64_t own = orders_.empty() ? seed : hash_combine(seed, orders_.size());
    orders_.push_back(SampleOrder::shuffled(own, corpus.samples.count()));
  }
}

void TrainingOrder::fill(Index first, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto size = static_cast<std::size_t>(set_.seq_len());
  if (tokens.size() != targets.size() || tokens.size() % size != 0)
    throw ShapeError(str("[training_order] tokens [", tokens.size(), "], targets [", targets.size(),
                         "]: must both be whole samples of ", size));
  for (std::size_t at = 0; at < tokens.size(); at += size, ++first) {
    const Blend::Draw draw = set_.blend().at(first);
    const auto corpus = static_cast<std::size_t>(draw.corpus);
    set_.corpora()[corpus].samples.copy(orders_[corpus].sample(draw.n), tokens.subspan(at, size),
                                        targets.subspan(at, size));
  }
}

}  // namespace megalith::data
