#include "megalith/tasks/pair_sample.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/bert_samples.h"

namespace megalith::tasks {

std::string race_query(const RaceQuestion& question, const std::string& option) {
  std::string query = question.text;
  const std::size_t blank = query.find('_');
  if (blank == std::string::npos) return str(query, ' ', option);
  std::size_t end = blank;
  while (end < query.size() && query[end] == '_') ++end;
  return query.replace(blank, end - blank, option);
}

FrameTokens frame_tokens(const tokenizer::Tokenizer& tokenizer) {
  const data::BertVocabulary vocabulary = data::bert_vocabulary(tokenizer);
  return {.cls = vocabulary.cls, .sep = vocabulary.sep, .pad = vocabulary.pad};
}

PairSample make_pair_sample(std::span<const std::int32_t> a, std::span<const std::int32_t> b, const FrameTokens& frame,
                            Index seq_len, Shortened shortened) {
  constexpr Index kMinSeqLen = 8, kFrame = 3;
  if (seq_len < kMinSeqLen) throw ConfigError(str("model.seq_len = ", seq_len, ": must be at least ", kMinSeqLen));
  const auto room = static_cast<std::size_t>(seq_len - kFrame);
  if (a.size() + b.size() > room) {
    std::size_t kept_a = a.size(), kept_b = std::min(b.size(), room);
    if (shortened == Shortened::longer) {
      // Both end equally long, or the shorter one stays whole.
      kept_a = std::min(a.size(), std::max(room - std::min(room, b.size()), room - room / 2));
      kept_b = room - kept_a;
    } else {
      kept_a = room - kept_b;
    }
    a = a.first(kept_a);
    b = b.first(kept_b);
  }
  PairSample sample;
  sample.tokens.reserve(static_cast<std::size_t>(seq_len));
  sample.tokens.push_back(frame.cls);
  sample.tokens.insert(sample.tokens.end(), a.begin(), a.end());
  sample.tokens.push_back(frame.sep);
  sample.types.assign(sample.tokens.size(), 0);
  sample.tokens.insert(sample.tokens.end(), b.begin(), b.end());
  sample.tokens.push_back(frame.sep);
  sample.types.resize(sample.tokens.size(), 1);
  sample.length = std::ssize(sample.tokens);
  sample.tokens.resize(static_cast<std::size_t>(seq_len), frame.pad);
  sample.types.resize(static_cast<std::size_t>(seq_len), 0);
  return sample;
}

PairSample pair_sample(const PairExample& example, const tokenizer::Tokenizer& tokenizer, const FrameTokens& frame,
                       Index seq_len) {
  return make_pair_sample(tokenizer.encode(example.first), tokenizer.encode(example.second), frame, seq_len,
                          Shortened::longer);
}

std::array<PairSample, kRaceOptions> race_samples(const RaceSet& set, const RaceQuestion& question,
                                                  const tokenizer::Tokenizer& tokenizer, const FrameTokens& frame,
                                                  const RaceSampleSize& size) {
  const std::vector<std::int32_t> article =
      tokenizer.encode(set.articles[static_cast<std::size_t>(question.article)].text);
  std::array<PairSample, kRaceOptions> samples;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    std::vector<std::int32_t> query = tokenizer.encode(race_query(question, question.options[i]));
    query.resize(std::min(query.size(), static_cast<std::size_t>(size.max_query)));
    samples[i] = make_pair_sample(article, query, frame, size.seq_len, Shortened::first);
  }
  return samples;
}

}  // namespace megalith::tasks
