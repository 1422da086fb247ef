// Faults at every operation of a save: whatever happens, a checkpoint at least as new as the last acknowledged one
// loads, to the bit, and a restart cleans up. A save that is known to be bad is swept too, and must be caught.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/io/fault_fs.h"

#include "tests/checkpoint/fixture.h"
#include "tests/io/temp_dir.h"

namespace megalith::checkpoint {
namespace {

using testing::IsEmpty;

/// The state that was saved at a step.
std::vector<Global> state_of_step(Index step) { return random_state(static_cast<std::uint64_t>(1000 + step)); }

/// Runs in a child process.
using Job = std::function<void(io::Fs&, const io::Path&)>;
/// Its exit codes: the job was acknowledged, without the fault or in spite of it (a read that failed was tried again).
constexpr int kUntouched = 0, kInSpite = 1;

void save_third(io::Fs& fs, const io::Path& root) { save_checkpoint(fs, root, 3, state_of_step(3)); }

/// With a fault at the n-th operation.
int run_job(const Job& job, std::uint64_t n, const std::string& action, const io::Path& root) {
  const ::pid_t child = ::fork();
  if (child == 0) {
    io::FaultFs fs(io::posix_fs(), io::parse_faults(str("0:*:", n, ":", action)), 0);
    try {
      job(fs, root);
    } catch (const IoError&) {
      ::_exit(74);
    } catch (...) {
      ::_exit(70);
    }
    ::_exit(fs.count() < n ? kUntouched : kInSpite);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

/// What is wrong after the fault; "" when all is well.
std::string check_after(const io::Path& root, Index acknowledged) {
  const auto fs = io::posix_fs();
  try {
    const Choice choice = find_newest_valid(*fs, root, OnCorrupt::previous);
    if (choice.folder.step < acknowledged)
      return str("step ", acknowledged, " was acknowledged, ", choice.folder.step, " is left");
    if (!choice.rejected.empty()) return "published and damaged: " + choice.rejected[0].reason;
    if (load_checkpoint(*fs, root / choice.folder.name()) != state_of_step(choice.folder.step)) return "other values";
    const io::RunLock lock = io::RunLock::take(root);
    if (const auto kept = io::clean_leftovers(*fs, root, lock).kept; !kept.empty()) return "not cleaned: " + kept[0];
  } catch (const Error& error) {
    return error.what();
  }
  for (const std::string& name : fs->list(root)) {
    if (name != "run.lock" && !io::parse_step_folder(name)) return "left over: " + name;
  }
  return "";
}

struct Sweep {
  int points = 0;
  std::vector<std::string> violations;
};

/// Steps 1 and 2 are saved and acknowledged; then `job` runs with a fault at its n-th operation, for all n.
Sweep sweep(const Job& job, const std::string& action, Index acknowledged_before, Index acknowledged_after) {
  Sweep result;
  for (bool untouched = false; !untouched && result.points < 500; ++result.points) {
    const TempDir dir;
    const auto fs = io::posix_fs();
    for (const Index step : {1, 2}) save_checkpoint(*fs, dir.path(), step, state_of_step(step));
    const auto n = static_cast<std::uint64_t>(result.points + 1);
    const std::string fault = str("operation ", n, ", ", action);
    const int status = run_job(job, n, action, dir.path());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    untouched = code == kUntouched;
    if (code == 70) result.violations.push_back(fault + ": not an IoError");
    const bool acknowledged = code == kUntouched || code == kInSpite;
    const std::string problem = check_after(dir.path(), acknowledged ? acknowledged_after : acknowledged_before);
    if (!problem.empty()) result.violations.push_back(fault + ": " + problem);
  }
  return result;
}

class FaultSweep : public testing::TestWithParam<const char*> {};

TEST_P(FaultSweep, SaveNeverLosesACheckpoint) {
  const Sweep result = sweep(save_third, GetParam(), 2, 3);
  EXPECT_GT(result.points, 25);
  EXPECT_THAT(result.violations, IsEmpty());
}

TEST_P(FaultSweep, SaveAndPruneNeverLoseACheckpoint) {
  const Sweep result = sweep(
      [](io::Fs& fs, const io::Path& root) {
        save_third(fs, root);
        std::vector<io::StepFolder> verified;
        prune(fs, root, 2, verified);
      },
      GetParam(), 2, 3);
  EXPECT_GT(result.points, 50);
  EXPECT_THAT(result.violations, IsEmpty());
}

TEST_P(FaultSweep, CleaningUpCanItselfBeKilled) {
  const Sweep result = sweep(
      [](io::Fs& fs, const io::Path& root) {
        write_all(io::begin_save(*io::posix_fs(), root, 3) / "a.safetensors", "half");
        const io::RunLock lock = io::RunLock::take(root);
        io::clean_leftovers(fs, root, lock);
      },
      GetParam(), 2, 2);
  EXPECT_GT(result.points, 5);
  EXPECT_THAT(result.violations, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Actions, FaultSweep, testing::Values("EIO", "short", "kill", "torn"),
                         [](const auto& action) { return std::string(action.param); });

// The control: makes room first and writes under the final name. The sweep must notice.
TEST(FaultSweepControl, CatchesASaveThatIsKnownToBeBad) {
  const Job bad = [](io::Fs& fs, const io::Path& root) {
    for (const io::StepFolder& old : io::published(fs, root)) io::remove_published(fs, root, old);
    const io::Path folder = root / io::StepFolder{3}.name();
    fs.make_dir(folder);
    std::vector<ShardReport> reports;
    std::vector<NamedPiece> pieces;
    std::vector<Global> state = state_of_step(3);
    for (Global& global : state) pieces.push_back({global.slice(), global.tensor()});
    reports.push_back(write_shard(fs, folder, shard_file_name(0), pieces));
    const auto file = fs.create(folder / "MANIFEST");
    file->write(manifest_text(build_manifest(run_state(3), reports)));
    file->sync();
  };
  EXPECT_GT(sweep(bad, "kill", 2, 3).violations.size(), 10u);
}

}  // namespace
}  // namespace megalith::checkpoint
