#pragma once
#include <optional>
#include <string>

#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/data/vocabulary_files.h"
#include "megalith/train/engine.h"
#include "megalith/train/host_staging.h"
#include "megalith/train/state_pieces.h"

namespace megalith::train {

/// What must be the same when a run goes on: hashes of what the recipe alone does not show. 0: not known, any will do.
struct DataIdentity {
  std::uint64_t tokenizer = 0, corpus = 0;
  data::VocabularyFiles vocabulary = nullptr;  ///< which every checkpoint holds, where the tokenizer has files
  std::string unicode = {};                    ///< Tokenizer::unicode_version(): another one is warned about
};

/// What resume() found.
struct Resumed {
  Progress progress;
  std::string folder;
  checkpoint::Digest128 digest;
  std::string gemm_table;             ///< its text; empty when the run that saved had none
  std::vector<std::string> warnings;  ///< damaged checkpoints passed over, settings that differ
};

/// Whether a save first asks the file system for the space that it has.
enum class Space : std::uint8_t { not_asked, asked };

/// Saves and loads the whole training state of all ranks. Every member is collective. Each rank writes what it owns
/// (owned_pieces) and reads what it updates; the manifest is rank 0's. Host memory: HostStaging.
class Saver {
 public:
  /// `folder` holds the step folders.
  Saver(Engine& engine, const config::RunPlan& plan, const DataIdentity& identity, io::Fs& fs, io::Path folder);

  /// Publishes step_<progress.step> and prunes old ones. Returns the state digest; throws IoError on every rank when
  /// any rank could not write, or asked for space and there was too little: nothing is acknowledged then, and the
  /// earlier checkpoints stand.
  checkpoint::Digest128 save(const Progress& progress, Space space = Space::not_asked);
  /// What a save lacks in its folder by now; empty where it has enough, or nobody knows. Not collective.
  std::string lack_of_space();

  /// Loads the newest valid checkpoint of any grid; nothing when none exists at all. A damaged one, or one whose state
  /// digest is not that of what was loaded, is passed over or refused as checkpoint.on_corrupt says. Throws
  /// CheckpointError: none is valid, it belongs to another model, seed or data, another version wrote it, or it is an
  /// imported model, which no run has trained; IoError where a file cannot be read.
  std::optional<Resumed> resume();

  /// Takes the values of a checkpoint, of a run of any grid or an imported one, and nothing else: moments, counters and
  /// data stay those of a run that begins. `folder`: rank 0's. Throws CheckpointError where it is of another shape,
  /// width of number or vocabulary; InputError where it is damaged, IoError where it cannot be read.
  void take_values(const io::Path& folder);

 private:
  /// Checkpoints that were chosen and then found to be of no use.
  struct Unusable {
    std::vector<checkpoint::Rejected> folders;
    bool by_digest = false;  ///< one was whole, but what it loaded was not what was saved
  };
  /// On rank 0.
  io::StepFolder choose(const Unusable& unusable, std::vector<std::string>& warnings);
  /// Loads resumed.folder, fills `resumed` and the digest that its manifest has. Returns the damage that some rank
  /// found. Throws IoError on all ranks where one cannot read.
  std::string read(Resumed& resumed, checkpoint::Digest128& wanted);
  /// What this rank owns.
  std::vector<StatePiece> owned() const;
  std::optional<checkpoint::ShardReport> write_shard(const io::Path& staging);
  /// Reads all of some tensors of this rank from a checkpoint.
  void read_pieces(checkpoint::CheckpointReader& reader, StateTensors tensors);
  checkpoint::RunState run_state(const Progress& progress);
  checkpoint::Digest128 digest_of_state(const Progress& progress);
  /// Of the files that hold no tensors, which this rank writes.
  std::vector<checkpoint::ShardReport> write_vocabulary(const io::Path& staging);
  std::vector<checkpoint::ShardReport> gather(const std::optional<checkpoint::ShardReport>& mine);
  /// The text of the lowest rank that has one, on every rank; empty when none has.
  std::string first_problem(const std::string& mine);
  bool any(bool mine);
  void load(checkpoint::CheckpointReader& reader);
  void compare_recipe(const checkpoint::RunState& saved, std::vector<std::string>& warnings) const;
  void compare_model(const checkpoint::RunState& saved, const io::Path& folder) const;

  Engine& engine_;
  const config::RunPlan& plan_;
  DataIdentity identity_;
  io::Fs& fs_;
  io::Path folder_;
  HostStaging staging_;
  Exec host_;                             ///< of the messages between ranks, which lie in host memory
  std::vector<io::StepFolder> verified_;  ///< by prune(), on rank 0
};

/// Hash of what must match at resume: the model's shape, precision, seed, tokenizer and corpus.
std::string config_hash(const config::RunPlan& plan, const DataIdentity& identity);

}  // namespace megalith::train
