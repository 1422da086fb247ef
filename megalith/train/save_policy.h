#pragma once
#include "megalith/train/run_log.h"
#include "megalith/train/trainer.h"

namespace megalith::train {

/// When a run saves: every checkpoint.interval steps, every checkpoint.every_s seconds, when it is stopped and after
/// the last step. Which checkpoints stay is Saver's.
class SavePolicy {
 public:
  /// What a save that cannot write means: another comes, or it was the last.
  enum class Failure { is_a_warning, ends_the_run };

  SavePolicy(Saver& saver, comm::World& world, const TrainInputs& inputs, RunLog& log)
      : saver_(saver), world_(world), inputs_(inputs), log_(log) {}

  /// Before the first step: from here on seconds count. Warns if there is no space for a save. Collective.
  void start();
  /// Whether the run saves after this step, also if no rank requests it.
  bool is_due(Index step) const;
  /// This rank's requests in the vote of a step: a signal stops the run, the clock saves. A signal that comes later
  /// ends the run after `next_vote`, or after the last step.
  Requests requests(Index next_vote) const;
  /// Throws IoError if a folder of the run no longer belongs to it, or if a failure ends the run. Collective.
  void save(const Progress& progress, Failure failure);
  /// Saves that failed since this start of the run.
  Index missed() const { return missed_; }

 private:
  void require_folders();
  void warn_of_space();

  Saver& saver_;
  comm::World& world_;
  const TrainInputs& inputs_;
  RunLog& log_;
  double saved_at_ = 0;  ///< when training last continued after a save, or began; of rank 0
  Index missed_ = 0;
};

}  // namespace megalith::train
