#include "megalith/data/samples.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

constexpr auto kOrderSite = static_cast<std::uint32_t>(fnv1a("data.sample_order"));

/// One step of the network: a bijection of [0, 4^half_bits).
std::uint64_t feistel(std::uint64_t value, int half_bits, std::uint64_t seed, std::uint64_t epoch) {
  // Luby and Rackoff 1988 need 4 rounds, but small halves mix less in each. With 8 rounds all orders of 3 and 4
  // samples are about equally frequent (tests). A sample still costs well below a microsecond.
  constexpr std::uint32_t kRounds = 8;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  std::uint64_t left = value >> half_bits, right = value & mask;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const RandomSite site{.seed = seed, .step = static_cast<std::uint32_t>(epoch), .site = kOrderSite + round};
    const Philox4 words = site.block(right | (epoch >> 32) << 32);  // right is below 2^32
    left = std::exchange(right, left ^ (words[0] & mask));
  }
  return left << half_bits | right;
}

[[noreturn]] void refuse_split(std::string_view text, std::string_view rule) {
  throw ConfigError(str("data.split = \"", text, "\": ", rule));
}

}  // namespace

std::array<TokenRange, 3> Split::ranges(Index num_tokens) const {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::array<TokenRange, 3> parts;
  double until = 0;
  Index begin = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    until += weights[i];
    // The last part with a weight takes the rest from rounding.
    const bool last = std::all_of(weights.begin() + static_cast<std::ptrdiff_t>(i) + 1, weights.end(),
                                  [](double w) { return w == 0; });
    const auto exact_end = static_cast<Index>(static_cast<double>(num_tokens) * (until / sum));
    const Index end = last ? num_tokens : std::clamp(exact_end, begin, num_tokens);
    parts[i] = {begin, end};
    begin = end;
  }
  return parts;
}

Split parse_split(std::string_view text) {
  Split split{.weights = {0, 0, 0}};
  std::size_t count = 0;
  for (std::string_view rest = text;;) {
    const std::string_view number = rest.substr(0, rest.find(','));
    const std::size_t begin = std::min(number.find_first_not_of(' '), number.size());
    const std::string_view trimmed = number.substr(begin, number.find_last_not_of(' ') + 1 - begin);
    double weight = 0;
    const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), weight);
    if (error != std::errc() || end != trimmed.data() + trimmed.size() || !std::isfinite(weight) || weight < 0)
      refuse_split(text,
                   str("\"", trimmed, "\" must be a number that is not negative; write \"969,30,1\" or \"0.95\""));
    if (count == split.weights.size()) refuse_split(text, "must be at most three numbers: train, valid, test");
    split.weights[count++] = weight;
    if (number.size() == rest.size()) break;
    rest.remove_prefix(number.size() + 1);
  }
  if (count == 1) {
    if (split.weights[0] > 1) refuse_split(text, "one number is the fraction of train: must be from 0 to 1");
    split.weights[1] = 1 - split.weights[0];
  }
  if (split.weights[0] <= 0) refuse_split(text, "the part of train, the first number, must be above 0");
  return split;
}

SampleSet::SampleSet(TokenSourcePtr source, TokenRange range, Index seq_len,
                     std::optional<std::int32_t> end_of_document)
    : source_(std::move(source)), range_(range), seq_len_(seq_len), end_of_document_(end_of_document) {
  if (seq_len < 1) throw ShapeError(str("[samples] seq_len = ", seq_len, ": must be at least 1"));
  if (range.begin < 0 || range.end > source_->num_tokens() || range.begin > range.end)
    throw ShapeError(str("[samples] tokens ", range.begin, " to ", range.end, " of ", source_->name(), ", which holds ",
                         source_->num_tokens()));
  if (range.size() <= seq_len)
    throw InputError(str("[", source_->name(), "] ", range.size(), " tokens in this part: one sample of seq_len ",
                         seq_len, " takes ", seq_len + 1));
}

void SampleSet::copy(Index sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  const auto size = static_cast<std::size_t>(seq_len_);
  if (sample < 0 || sample >= count())
    throw ShapeError(str("[samples] sample ", sample, " of ", source_->name(), ": must be below ", count()));
  if (tokens.size() != size || targets.size() != size)
    throw ShapeError(
        str("[samples] tokens [", tokens.size(), "], targets [", targets.size(), "]: must be [", size, "]"));
  const Index first = range_.begin + sample * seq_len_;
  source_->copy(first, tokens);
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
  source_->copy(first + seq_len_, targets.last(1));
}

SampleOrder::SampleOrder(Index count, std::uint64_t seed, Kind kind) : count_(count), seed_(seed), kind_(kind) {
  if (count < 1) throw ShapeError(str("[sample_order] count = ", count, ": must be at least 1"));
  const int bits = std::bit_width(static_cast<std::uint64_t>(count - 1));
  half_bits_ = std::max(1, (bits + 1) / 2);
}

Index SampleOrder::sample(Index n) const {
  if (n < 0) throw ShapeError(str("[sample_order] n = ", n, ": must not be negative"));
  auto value = static_cast<std::uint64_t>(n % count_);
  if (kind_ == Kind::sequential) return static_cast<Index>(value);
  // The cycle of a value below count returns below count, at the latest with the value itself.
  do {
    value = feistel(value, half_bits_, seed_, static_cast<std::uint64_t>(epoch(n)));
  } while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<Index>(value);
}

void fill_batch(const SampleOrder& order, const SampleSet& set, Index first, std::span<std::int32_t> tokens,
                std::span<std::int32_t> targets) {
  const auto size = static_cast<std::size_t>(set.seq_len());
  if (tokens.size() != targets.size() || tokens.size() % size != 0)
    throw ShapeError(str("[fill_batch] tokens [", tokens.size(), "], targets [", targets.size(),
                         "]: must both be whole samples of ", size));
  if (order.count() != set.count())
    throw ShapeError(str("[fill_batch] an order of ", order.count(), " samples over a set of ", set.count()));
  for (std::size_t at = 0; at < tokens.size(); at += size, ++first)
    set.copy(order.sample(first), tokens.subspan(at, size), targets.subspan(at, size));
}

}  // namespace megalith::data
