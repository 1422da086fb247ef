#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/nn/head_results.h"

namespace megalith::eval {

/// The shape of a forward pass, per sample: tokens that the layers read, and rows of which the head makes results.
/// Samples are padded to one of few shapes, because every shape has a memory plan.
struct PassShape {
  Index tokens = 0, rows = 0;
  auto operator<=>(const PassShape&) const = default;
};

/// The shape of samples of so many tokens, of which so many rows are asked for. No more tokens than `max_tokens`, the
/// model's seq_len.
PassShape pass_shape(Index tokens, Index rows, Index max_tokens);

/// Where a sample is written, on the host.
struct SampleInputs {
  std::span<std::int32_t> tokens;   ///< [PassShape::tokens], zeros before
  std::span<std::int32_t> types;    ///< the same; empty where the model has no such input
  std::span<std::int32_t> rows;     ///< [PassShape::rows] places of tokens that results are asked of; -1: none
  std::span<std::int32_t> targets;  ///< the same: their targets, -1: none
  std::int32_t& length;             ///< tokens that are no padding; read by models of samples with lengths
  std::int32_t& label;              ///< the sample's class, -1: none
};

/// The samples of an inference, the same on all ranks. Rank threads share them: all functions are thread-safe.
class Samples {
 public:
  virtual ~Samples() = default;
  virtual Index count() const = 0;
  virtual PassShape shape(Index sample) const = 0;
  /// The tokens that layers read, without padding.
  virtual Index tokens(Index sample) const = 0;
  /// The rows that results are asked of: the first of SampleInputs::rows.
  virtual Index rows(Index sample) const = 0;
  virtual void fill(Index sample, const SampleInputs& to) const = 0;
};

/// Some of other samples, which must outlive it, by their numbers.
class SomeSamples final : public Samples {
 public:
  SomeSamples(const Samples& all, std::vector<Index> numbers) : all_(all), numbers_(std::move(numbers)) {}
  Index count() const override { return std::ssize(numbers_); }
  PassShape shape(Index sample) const override { return all_.shape(number(sample)); }
  Index tokens(Index sample) const override { return all_.tokens(number(sample)); }
  Index rows(Index sample) const override { return all_.rows(number(sample)); }
  void fill(Index sample, const SampleInputs& to) const override { all_.fill(number(sample), to); }
  Index number(Index sample) const { return numbers_[static_cast<std::size_t>(sample)]; }

 private:
  const Samples& all_;
  std::vector<Index> numbers_;
};

/// A result that is asked for, and its numbers for each row or sample.
struct AskedResult {
  nn::Result result = nn::Result::losses;
  Index width = 1;
};

/// The results of a sample: of rows, width numbers for each of its rows; of samples, width numbers. Empty: not asked.
class SampleNumbers {
 public:
  const std::vector<double>& of(nn::Result result) const { return numbers_[static_cast<std::size_t>(result)]; }
  std::vector<double>& of(nn::Result result) { return numbers_[static_cast<std::size_t>(result)]; }

 private:
  std::array<std::vector<double>, nn::kResults.size()> numbers_;
};

/// How many samples there are of each shape.
using PassCounts = std::map<PassShape, Index>;
PassCounts count_shapes(const Samples& samples);

/// Samples of one shape in a microbatch, at most `most`: as many in each as nearly fills the last one, too, so that
/// hardly any are padding. `dp` data-parallel ranks share them out.
Index balanced_batch(Index samples, Index most, int dp);

/// How many samples a round takes: microbatches of `batch` samples on each of `dp` data-parallel ranks.
struct RoundSize {
  Index batch = 1;
  int dp = 1, microbatches = 1;
  Index samples() const { return batch * dp * microbatches; }
};

/// Samples of one shape that go through the pipeline together. Sample k of the round is number k % batch of
/// microbatch k / (batch * dp), on data-parallel rank k / batch % dp.
struct Round {
  PassShape shape;
  std::vector<Index> samples;  ///< their numbers
  int microbatches = 1;
};

/// Every sample in one round, the longest shapes first, so that a lack of memory shows at once; those of one shape in
/// their order.
std::vector<Round> make_rounds(const Samples& samples, const std::function<RoundSize(const PassShape&)>& size_of);

}  // namespace megalith::eval
