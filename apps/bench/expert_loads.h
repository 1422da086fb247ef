#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "megalith/io/fs.h"
#include "megalith/train/router_trace_file.h"

namespace megalith::apps {

/// `total` things over as many groups as there are weights (at least 0, not all), in proportion to them: by largest
/// remainders, the lower number first among equal ones.
std::vector<Index> proportional_counts(Index total, std::span<const double> weights);

/// Rows of each group for `bench grouped --sizes TEXT`.
///   even: the same number, or one more for the first ones;
///   zipf:S: in proportion to 1 / (1 + g)^S of group g;
///   else a file of whole numbers between white space, one for each group.
/// rows, groups: 0 if they were not given. Throws ConfigError for another text, InputError for a file that
/// is missing, is none of sizes or does not fit rows and groups.
std::vector<Index> group_sizes(io::Fs& fs, const std::string& text, Index rows, Index groups);

/// Who chooses the experts of `bench moe`.
struct LoadSizes {
  Index tokens = 1;  ///< of a rank
  Index experts = 1, top_k = 1;
  Index ranks = 1;  ///< each with a share of the experts
};

/// The experts of every token in each step, for `bench moe --load TEXT`. All loads but a trace's have the same number
/// of tokens from every rank.
///   even: every expert gets the same number of choices, or one more for the first ones;
///   hot: expert 0 is among the choices of every token, and the others get even shares of the rest;
///   rank: the experts of rank 0 get as many choices as they can take, evenly, and the others the rest;
///   rotate: as hot, but in step s it is expert (s V + s / R) mod E of R ranks with V experts each: another rank's in
///     each step, and each expert in E steps;
///   burst: even, but in every fourth step as rank;
///   trace:FILE: the choices that the first MoE layer of a run made (train --router-trace). Step s takes step s mod n
///     of the n of the file, rank r the tokens from r times its number on.
class ExpertLoad {
 public:
  /// Throws ConfigError for an unknown load, InputError for a file that is missing, no trace, or of other sizes.
  ExpertLoad(io::Fs& fs, const std::string& text, const LoadSizes& sizes);

  /// [tokens, K], the experts of a token distinct.
  std::vector<std::int32_t> choices(Index step, Index rank) const;
  /// Choices of each expert by the tokens of all ranks.
  std::vector<Index> counts(Index step) const;

 private:
  enum class Kind : std::uint8_t { even, hot, rank, rotate, burst, trace };
  Kind kind_of_step(Index step) const;
  std::vector<Index> counts_of_rank(Index step) const;

  LoadSizes sizes_;
  Kind kind_ = Kind::even;
  std::shared_ptr<const train::RouterTraceFile> trace_;
};

}  // namespace megalith::apps
