#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "megalith/eval/decoder.h"

namespace megalith::eval {

struct GenerateOptions {
  Index max_tokens = 100;
  double temperature = 1.0;      ///< 0: greedy, ties to the lower id
  Index top_k = 0;               ///< draw among the k likeliest only; 0: among all
  double top_p = 1.0;            ///< draw among the fewest likeliest whose probabilities reach p, in (0, 1]
  std::uint64_t seed = 0;        ///< a token is a function of (seed, prompt, sample, its position) and the logits
  std::int32_t stop_token = -1;  ///< ends the text when drawn; -1: none
  Index slide = 1;               ///< tokens that a full window loses at once, 1 to the decoder's capacity
};

/// The id drawn from softmax(logits / temperature), cut to top_k and then to top_p. `uniform` in [0, 1).
std::int32_t draw(std::span<const double> logits, const GenerateOptions& options, double uniform);

/// A text to continue. Samples of one prompt differ by their number.
struct TextRequest {
  std::vector<std::int32_t> prompt;  ///< 1 to seq_len ids
  Index sample = 0;
};

/// The number in [0, 1) that the token at `position` of a text is drawn with.
double uniform_of(const TextRequest& request, std::uint64_t seed, Index position);

enum class Ending : std::uint8_t { max_tokens, stop_token, refused };

/// What becomes of the texts, by their number in the list. Called on every rank alike.
struct TextEvents {
  /// The logits [vocab_size] that a text's next token is drawn from, on ranks that have them. Calls for several texts
  /// may be made at once, by threads.
  std::function<void(std::size_t text, std::span<const double> logits)> logits = [](std::size_t,
                                                                                    std::span<const double>) {};
  /// A new token. False ends the text (Ending::refused). All ranks must return the same.
  std::function<bool(std::size_t text, std::int32_t id)> token;
  std::function<void(std::size_t text, Ending)> end = [](std::size_t, Ending) {};
  /// A full window lost its first tokens and was read again.
  std::function<void(std::size_t text)> slide = [](std::size_t) {};
  /// Where the model has copies: at most every kStepsOfARound steps, as often on every rank of the world and at least
  /// once after the last token of all. A place for calls of the whole world.
  std::function<void()> round = [] {};
};
inline constexpr Index kStepsOfARound = 16;

/// What was computed, for rates.
struct GenerateCounts {
  Index written = 0;  ///< new tokens
  Index read = 0;     ///< tokens of prompts, and of windows that were read again
  Index stepped = 0;  ///< new tokens that came from a step, and not from the reading of a window
  double read_s = 0, step_s = 0;
  double seconds = 0;  ///< of all, without what a GPU needs once

  /// Adds the counts of a model copy that runs at the same time.
  void add(const GenerateCounts& other);
};

/// The lengths of the windows that generate() starts with these texts: DecoderConfig::lengths.
std::vector<Index> window_lengths(std::span<const TextRequest> texts, const GenerateOptions& options, Index capacity);

/// Continues the texts, as many at once as the decoder has slots; a text that ends gives its slot to the next one.
/// Where the text outgrows the decoder's capacity the window slides. All ranks of the world make this call, those of
/// a model copy with the same texts. The texts depend on neither their order, nor on how many go on at once, but by
/// rounding. Communication between copies: 8 bytes of each rank in a round, or, where copies meet in passes, 8 bytes
/// before each pass. Throws InputError for an empty prompt, and for one above the capacity.
GenerateCounts generate(Decoder& decoder, std::span<const TextRequest> texts, const GenerateOptions& options,
                        const TextEvents& events);

}  // namespace megalith::eval
