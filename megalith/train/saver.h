#pragma once
#include <functional>
#include <optional>
#include <string>

#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/train/engine.h"
#include "megalith/train/host_staging.h"
#include "megalith/train/run_identity.h"
#include "megalith/train/state_pieces.h"

namespace megalith::train {

/// The result of resume().
struct Resumed {
  Progress progress;
  std::string folder;
  checkpoint::Digest128 digest;
  std::string gemm_table;             ///< its text; empty if the run that saved had none
  std::vector<std::string> warnings;  ///< damaged checkpoints that were skipped, settings that differ
};

/// Whether a save first compares its size with the free space of the file system.
enum class Space : std::uint8_t { not_asked, asked };

/// Saves and loads the whole training state of all ranks. Every member is collective. Each rank writes the slices that
/// it owns (owned_pieces), and reads the slices that it updates. Rank 0 writes the manifest. Host memory: HostStaging.
class Saver {
 public:
  /// `folder` holds the step folders.
  Saver(Engine& engine, const config::RunPlan& plan, const DataIdentity& identity, io::Fs& fs, io::Path folder);
  Saver(Engine&, const config::RunPlan&&, const DataIdentity&, io::Fs&, io::Path) = delete;

  /// Publishes step_<progress.step> and prunes old checkpoints. Returns the state digest. Throws IoError on every rank
  /// if any rank could not write, or if space was checked and there was too little; CollectiveError if replicas of
  /// parameters differ (require_equal_replicas). Then nothing is acknowledged, and the earlier checkpoints stay.
  checkpoint::Digest128 save(const Progress& progress, Space space = Space::not_asked);
  /// The space that a save lacks in its folder at present, on rank 0; empty if there is enough, or if it is unknown,
  /// and on the other ranks.
  std::string lack_of_space();

  /// Loads the newest valid checkpoint of any grid; nothing if there is none at all. A damaged checkpoint, or one whose
  /// state digest differs from that of the loaded state, is skipped or refused according to checkpoint.on_corrupt.
  /// Throws CheckpointError: none is valid; it belongs to another model, seed or data; another version wrote it; or it
  /// is an imported model, which no run has trained. Throws IoError if a file cannot be read.
  std::optional<Resumed> resume();

  /// Takes only the values of a checkpoint, of a run of any grid or an imported one, or those of a Hugging Face folder.
  /// Moments, counters and data stay those of a new run. A fine-tuned model keeps the values of its head that the
  /// source lacks. `folder`: rank 0's. Returns ModelChanges::taken, and a line on what was kept. Throws CheckpointError
  /// if its model or, of a checkpoint, its number format or vocabulary differ; InputError if it is damaged; IoError if
  /// it cannot be read.
  std::vector<std::string> take_values(const io::Path& folder);

 private:
  /// Checkpoints that were chosen and then found to be unusable.
  struct Unusable {
    std::vector<checkpoint::Rejected> folders;
    bool by_digest = false;  ///< one was undamaged, but the loaded state differed from the saved one
  };
  /// On rank 0.
  io::StepFolder choose(const Unusable& unusable, std::vector<std::string>& warnings);
  /// Loads resumed.folder. Fills `resumed`, and `wanted` with the digest that its state has in this run. Returns the
  /// damage that a rank found. Throws IoError on all ranks if one cannot read.
  std::string read(Resumed& resumed, checkpoint::Digest128& wanted);
  /// The slices that this rank owns.
  std::vector<StatePiece> owned() const;
  std::optional<checkpoint::ShardReport> write_shard(const io::Path& staging);
  /// Whether the state of a rule is this run's and not the checkpoint's: it starts at 0.
  bool starts_from_zero(const checkpoint::Manifest& saved, std::string_view tensor) const;
  /// Digest of what is not as saved: of what starts from 0 on this rank and of moments that were converted, less that
  /// of what the checkpoint has and this run leaves out, and of these moments as saved.
  checkpoint::Digest128 digest_of_changes(checkpoint::CheckpointReader& reader);
  std::vector<std::string> warnings_of_other_rules(const checkpoint::Manifest& saved) const;
  /// Where values come from.
  struct Source {
    std::string_view what;                        ///< for messages
    std::function<bool(const TensorSlice&)> has;  ///< whether it has a parameter of this name and shape
    ReadValues read;
  };
  Source source_of(checkpoint::CheckpointReader& reader) const;
  /// Reads this rank's slices of the given kind of tensors, but those that is_new().
  void read_pieces(const Source& source, StateTensors tensors);
  /// Whether a parameter belongs to a task's head, and the source has none of its name and shape.
  bool is_new(const Source& source, const TensorSlice& slice) const;
  /// A line that names those; empty if there are none.
  std::string new_parameters(const Source& source) const;
  /// take_values() of either kind of folder, on this rank. Add to `taken`.
  void take_from_checkpoint(const io::Path& folder, std::vector<std::string>& taken);
  void take_from_hf(const io::Path& folder, std::vector<std::string>& taken);
  checkpoint::RunState run_state(const Progress& progress);
  checkpoint::Digest128 digest_of_state(const Progress& progress);
  void add_digest(const StatePiece& piece, checkpoint::StateDigest& digest);
  /// The sum over all ranks.
  checkpoint::Digest128 sum_over_ranks(const checkpoint::Digest128& mine);
  /// At most what the shards of all ranks take on a disk, and their part of the manifest. Collective.
  std::uint64_t bytes_of_shards();
  /// At most what the other files take, which this rank writes.
  std::uint64_t bytes_of_plain_files() const;
  /// Removes old checkpoints. Warns once of each that stays because its manifest cannot be read.
  void prune();
  std::vector<checkpoint::ShardReport> gather(const std::optional<checkpoint::ShardReport>& mine);
  /// The text of the lowest rank that has one, on every rank; empty if none has.
  std::string first_problem(const std::string& mine);
  bool any(bool mine);
  void load(checkpoint::CheckpointReader& reader);
  void compare_recipe(const checkpoint::RunState& saved, std::vector<std::string>& warnings) const;

  Engine& engine_;
  const config::RunPlan& plan_;
  DataIdentity identity_;
  io::Fs& fs_;
  io::Path folder_;
  HostStaging staging_;
  Exec host_;                             ///< of the messages between ranks, which lie in host memory
  std::vector<io::StepFolder> verified_;  ///< by prune(), on rank 0
  std::vector<io::StepFolder> unread_;    ///< that prune() has warned of
  std::optional<std::uint64_t> shards_;   ///< bytes_of_shards(), once it is known: on all ranks alike
  std::uint64_t last_saved_ = 0;          ///< bytes of the last save of this run, on rank 0
};

}  // namespace megalith::train
