#include "megalith/train/early_stop.h"

#include <cmath>

#include "megalith/base/str.h"

namespace megalith::train {

void add_evaluation(std::optional<HeldOutRecord>& record, Index step, double loss, double delta) {
  const bool is_better = std::isfinite(loss) && (!record || loss < record->best_loss - delta);
  if (is_better)
    record = HeldOutRecord{.best_step = step, .best_loss = loss};
  else if (record)
    ++record->without;
  if (record) record->last_step = step;
}

bool stops_early(const config::TrainConfig& config, const std::optional<HeldOutRecord>& record) {
  return config.early_stop > 0 && record && record->without >= config.early_stop;
}

std::string early_stop_text(const HeldOutRecord& record) {
  return str("the held-out loss has not fallen in ", record.without,
             record.without == 1 ? " evaluation" : " evaluations", "; the best was ", record.best_loss, " at step ",
             record.best_step);
}

}  // namespace megalith::train
