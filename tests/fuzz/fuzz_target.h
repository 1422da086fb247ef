#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::fuzz {

/// A promise of a reader that did not hold for an input.
struct BrokenPromise : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A reader of what others have written, and what it promises for any bytes: it reads them or refuses them with an
/// InputError, and what it reads equals what a second, simpler way of reading gives.
struct Target {
  std::string_view name;
  /// True when the input was read, false when it was refused. Throws BrokenPromise; any other exception is a finding
  /// too.
  bool (*run)(std::string_view input);
  /// Inputs that are read.
  std::vector<std::string> (*seeds)();
  /// What a random change puts in.
  std::span<const std::string_view> parts;
};

/// gzip, zstd, xz, parquet, wordpiece, pattern, tokenizer_json, glue, squad, race, predictions.
std::span<const Target> targets();
/// Throws std::invalid_argument naming all when there is no such target.
const Target& target_named(std::string_view name);

/// Two of the seeds' inputs with one to four changes, a function of `test` alone.
std::string mutated(const Target& target, const std::vector<std::string>& seeds, std::uint64_t test);

// The targets by file.
bool read_packed(std::string_view input);
std::vector<std::string> gzip_seeds();
std::vector<std::string> zstd_seeds();
std::vector<std::string> xz_seeds();
bool read_parquet(std::string_view input);
std::vector<std::string> parquet_seeds();
bool read_wordpiece(std::string_view input);
std::vector<std::string> wordpiece_seeds();
bool read_pattern(std::string_view input);
std::vector<std::string> pattern_seeds();
bool read_tokenizer_json(std::string_view input);
std::vector<std::string> tokenizer_json_seeds();
bool read_glue(std::string_view input);
std::vector<std::string> glue_seeds();
bool read_squad(std::string_view input);
std::vector<std::string> squad_seeds();
bool read_race(std::string_view input);
std::vector<std::string> race_seeds();
bool read_predictions(std::string_view input);
std::vector<std::string> predictions_seeds();

}  // namespace megalith::fuzz
