#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/tokenizer/vocabulary_files.h"

namespace megalith::train {

/// Facts that must be the same when a run resumes: hashes of data that the recipe alone does not identify. 0: unknown,
/// any value is accepted.
struct DataIdentity {
  std::uint64_t tokenizer = 0, corpus = 0;
  tokenizer::VocabularyFiles vocabulary = nullptr;  ///< which every checkpoint holds, if the tokenizer has files
  std::string unicode = {};                         ///< Tokenizer::unicode_version(): a different one causes a warning
};

/// Names among a manifest's texts and integers.
inline constexpr const char *kRecipeText = "recipe", *kTokenizerHash = "tokenizer_hash", *kCorpusHash = "corpus_hash",
                            *kUnicodeVersion = "unicode_version", *kSamples = "samples", *kUpdates = "updates";

/// Hash of everything that must match at resume: the model's shape, precision, seed, tokenizer and corpus.
std::string config_hash(const config::RunPlan& plan, const DataIdentity& identity);

/// What a manifest records of a run before its first step: recipe, hashes, counters at 0.
checkpoint::RunState state_at_start(const config::RunPlan& plan, const DataIdentity& identity);

/// Writes the vocabulary's files to a checkpoint that is being saved. Called by one rank. Throws IoError.
std::vector<checkpoint::ShardReport> write_vocabulary(io::Fs& fs, const io::Path& staging,
                                                      const DataIdentity& identity);

}  // namespace megalith::train
