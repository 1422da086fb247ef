#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/tasks/glue.h"
#include "megalith/tasks/race.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::tasks {

/// The tokens around texts.
struct FrameTokens {
  std::int32_t cls = 0, sep = 0, pad = 0;
};
/// Of a vocabulary of BERT (data::bert_vocabulary()). Throws ConfigError for another one.
FrameTokens frame_tokens(const tokenizer::Tokenizer& tokenizer);

/// [CLS] A [SEP] B [SEP], padded.
struct PairSample {
  std::vector<std::int32_t> tokens;  ///< [S], [PAD] after the first `length`
  std::vector<std::int32_t> types;   ///< [S], 1 for B and the [SEP] after it, else 0
  Index length = 0;
};

/// Which text loses its end where both are longer than S - 3 tokens.
enum class Shortened : std::uint8_t {
  longer,  ///< the longer one, token by token; of two equally long ones B (MNLI, QQP)
  first    ///< A; B where it is longer than S - 3 itself (RACE, whose A is the article)
};

/// Throws ConfigError for seq_len below 8.
PairSample make_pair_sample(std::span<const std::int32_t> a, std::span<const std::int32_t> b, const FrameTokens& frame,
                            Index seq_len, Shortened shortened);

/// The sentences of an example of MNLI or QQP.
PairSample pair_sample(const PairExample& example, const tokenizer::Tokenizer& tokenizer, const FrameTokens& frame,
                       Index seq_len);

/// The text of a question with an option: it takes the place of the "_" in a question that has one, else it follows.
std::string race_query(const RaceQuestion& question, const std::string& option);

struct RaceSampleSize {
  Index seq_len = 512;
  Index max_query = 128;  ///< tokens of a question with an option
};

/// The four sequences of a question: A is the article, B the question with an option (race_query()). B keeps its first
/// `max_query` tokens.
std::array<PairSample, kRaceOptions> race_samples(const RaceSet& set, const RaceQuestion& question,
                                                  const tokenizer::Tokenizer& tokenizer, const FrameTokens& frame,
                                                  const RaceSampleSize& size);

}  // namespace megalith::tasks
