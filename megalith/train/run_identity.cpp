#include "megalith/train/run_identity.h"

#include "megalith/base/hash.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/config/keys.h"

namespace megalith::train {

std::string config_hash(const config::RunPlan& plan, const DataIdentity& identity) {
  std::uint64_t hash = hash_combine(identity.tokenizer, identity.corpus);
  for (const auto& [key, value] : config::identity_of(plan))
    hash = hash_combine(hash_combine(hash, fnv1a(key)), fnv1a(value));
  return hex64(hash);
}

checkpoint::RunState state_at_start(const config::RunPlan& plan, const DataIdentity& identity) {
  checkpoint::RunState state;
  state.config_hash = config_hash(plan, identity);
  state.grid = config::grid_text(plan);
  state.integers = {{kSamples, 0}, {kUpdates, 0}};
  state.texts = {{kRecipeText, config::to_toml(plan.as_config())},
                 {kTokenizerHash, hex64(identity.tokenizer)},
                 {kCorpusHash, hex64(identity.corpus)}};
  if (!identity.unicode.empty()) state.texts[kUnicodeVersion] = identity.unicode;
  return state;
}

std::vector<checkpoint::ShardReport> write_vocabulary(io::Fs& fs, const io::Path& staging,
                                                      const DataIdentity& identity) {
  std::vector<checkpoint::ShardReport> reports;
  if (identity.vocabulary == nullptr) return reports;
  for (const tokenizer::VocabularyFile& file : *identity.vocabulary)
    reports.push_back(checkpoint::write_plain_file(fs, staging, file.name, file.text));
  return reports;
}

}  // namespace megalith::train
