#pragma once
#include <memory>
#include <string>

#include "megalith/comm/world.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/fs.h"
#include "megalith/nn/moe/router_decisions.h"

namespace megalith::train {

/// Throws ConfigError where --router-trace = FILE can not be written: no experts, or decisions that are replayed.
void require_router_trace(const config::RunPlan& plan, const std::string& file);

/// The hook that a run sets for its routers. A derived class records in a file or repeats one; this one does neither.
class RouterTrace : public nn::RouterDecisions {
 public:
  /// After the passes of a step. Collective.
  virtual void end_step() {}
  /// When the run ends: the file gets its name. Returns a line for the log, "" if there is nothing to report.
  virtual std::string publish() { return ""; }
};

/// The hook of a run that trains the steps after `first_step`. Repeats moe.replay, else records in `file` if it is not
/// empty: rank 0 makes the file, and a step costs an all-reduce of 4 bytes per decision. Throws ConfigError for a
/// moe.replay of another shape or without these steps, InputError for one that is cut, IoError. A replay throws
/// InputError for experts that do not exist, and if those of a token are not distinct.
std::unique_ptr<RouterTrace> open_router_trace(comm::World& world, io::Fs& fs, const config::RunPlan& plan,
                                               const io::Path& file, Index first_step);

}  // namespace megalith::train
