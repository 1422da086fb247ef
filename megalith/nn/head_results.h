#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "megalith/tensor/tensor.h"

namespace megalith::nn {

/// What an inference may ask of a head, about R rows of the stream or about each of B samples. A head makes those that
/// its comment names.
struct HeadResults {
  Tensor losses = {};        ///< [R] of the rows' targets; 0 where there is none
  Tensor best_ids = {};      ///< [R] the likeliest id; the lower one of equal logits
  Tensor hidden = {};        ///< [R, H] rows of the stream after the final norm, if there is one
  Tensor row_logits = {};    ///< [R, W] numbers of a task for each row
  Tensor label_losses = {};  ///< [B] of the samples' labels; 0 where there is none
  Tensor class_logits = {};  ///< [B, C]
  Tensor pooled = {};        ///< [B, H]
};

/// A result by its name. Numbers of rows come first.
enum class Result : std::uint8_t { losses, best_ids, hidden, row_logits, label_losses, class_logits, pooled };
enum class ResultOf : std::uint8_t { row, sample };
/// statistics: f64 where activations are, else f32. compute: as activations. id: i32.
enum class ResultDType : std::uint8_t { statistics, compute, id };

/// One row per result. All code that lays out, slices or copies results uses this table.
struct ResultRow {
  Result result = Result::losses;
  std::string_view name;
  ResultOf of = ResultOf::row;
  ResultDType dtype = ResultDType::compute;
  Tensor HeadResults::*tensor = nullptr;
};
inline constexpr std::array kResults{
    ResultRow{Result::losses, "loss", ResultOf::row, ResultDType::statistics, &HeadResults::losses},
    ResultRow{Result::best_ids, "likeliest id", ResultOf::row, ResultDType::id, &HeadResults::best_ids},
    ResultRow{Result::hidden, "hidden state", ResultOf::row, ResultDType::compute, &HeadResults::hidden},
    ResultRow{Result::row_logits, "logit of a token", ResultOf::row, ResultDType::compute, &HeadResults::row_logits},
    ResultRow{Result::label_losses, "loss of the label", ResultOf::sample, ResultDType::statistics,
              &HeadResults::label_losses},
    ResultRow{Result::class_logits, "logit of a class", ResultOf::sample, ResultDType::compute,
              &HeadResults::class_logits},
    ResultRow{Result::pooled, "pooled row", ResultOf::sample, ResultDType::compute, &HeadResults::pooled}};
inline constexpr const ResultRow& row_of(Result result) { return kResults[static_cast<std::size_t>(result)]; }
static_assert([] {
  for (std::size_t i = 0; i < kResults.size(); ++i)
    if (static_cast<std::size_t>(kResults[i].result) != i) return false;
  return true;
}());

/// Whether some result about rows, or about samples, is asked for.
inline bool has_results(const HeadResults& results, ResultOf of) {
  for (const ResultRow& row : kResults)
    if (row.of == of && results.*row.tensor) return true;
  return false;
}
/// The parts of results about rows [first, first + count). Results about samples are left out.
inline HeadResults of_rows(const HeadResults& all, Index first, Index count) {
  HeadResults some;
  for (const ResultRow& row : kResults)
    if (row.of == ResultOf::row && all.*row.tensor) some.*row.tensor = (all.*row.tensor).rows(first, count);
  return some;
}

}  // namespace megalith::nn
