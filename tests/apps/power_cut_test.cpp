// The power cut while the program trains: file systems on loop devices, shut down without flushing their logs at a
// random instant, mounted again, and the run restarted. Needs root, loop devices and the file systems' tools: skipped
// elsewhere.
#include <random>
#include <thread>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tests/apps/crash_run.h"
#include "tests/support/sanitizers.h"
#include "tests/support/sweep.h"

namespace megalith {
namespace {

using support::CrashRun;
using support::Finished;
using support::run_shell;

struct Disk {
  const char* name;
  const char* make;  ///< command that formats an image
  const char* size;
};

/// A mounted image, taken away when the test ends.
class LoopMount {
 public:
  explicit LoopMount(const Disk& disk) : image_((dir_ / "image").string()), mount_((dir_ / "mount").string()) {
    std::filesystem::create_directory(mount_);
    const Finished made = run_shell("truncate -s " + std::string(disk.size) + " " + image_ + " && " + disk.make + " " +
                                    image_ + " && mount -o loop " + image_ + " " + mount_);
    mounted_ = made.code == 0;
    reason_ = made.err;
  }
  ~LoopMount() {
    if (mounted_) run_shell("umount " + mount_);
  }
  bool mounted() const { return mounted_; }
  const std::string& reason() const { return reason_; }
  std::string out() const { return mount_ + "/out"; }

  /// Ends the file system at once, without writing what it holds back.
  bool cut_power() const {
    constexpr unsigned long kShutdown = _IOR('X', 125, std::uint32_t);  // ext4 and XFS alike
    std::uint32_t without_flushing_the_log = 2;
    const int folder = ::open(mount_.c_str(), O_RDONLY);
    const bool done = folder >= 0 && ::ioctl(folder, kShutdown, &without_flushing_the_log) == 0;
    if (folder >= 0) ::close(folder);
    return done;
  }
  bool mount_again() {
    return run_shell("for i in $(seq 50); do umount " + mount_ +
                     " 2>/dev/null && break; sleep 0.02; done; mount -o loop " + image_ + " " + mount_)
               .code == 0;
  }
  void clear() { run_shell("rm -rf " + out() + "; sync"); }

 private:
  TempDir dir_{"/var/tmp"};
  std::string image_, mount_;
  bool mounted_ = false;
  std::string reason_;
};

struct Cuts {
  int made = 0, lost = 0;
  std::string first_problem;
};

/// However slowly the program starts; gives up after 20 s.
void wait_for_a_checkpoint(const std::string& out) {
  for (int i = 0; i < 4000 && !std::filesystem::exists(out + "/checkpoints/step_00000002"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/// Trains on the disk, cuts the power after a random time, mounts, restarts; `faults` break the save protocol.
Cuts cut_power(LoopMount& disk, const CrashRun& run, int cuts, const std::string& faults) {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> milliseconds(5, 200);
  Cuts result;
  for (int i = 0; i < cuts; ++i) {
    Finished stopped;
    std::thread training([&] { stopped = run.train("MEGALITH_FAULT='" + faults + "'", disk.out()); });
    wait_for_a_checkpoint(disk.out());
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds(random)));
    const bool cut = disk.cut_power();
    training.join();
    if (!cut || !disk.mount_again()) throw std::runtime_error("the disk could not be cut off and mounted again");
    if (stopped.code != 0) ++result.made;
    const std::int64_t acknowledged = support::said_by(stopped).acknowledged;
    const std::string problem = run.problem_of(run.train("", disk.out()), acknowledged, disk.out());
    if (!problem.empty() && ++result.lost == 1) result.first_problem = problem + "\n" + stopped.err;
    disk.clear();
  }
  return result;
}

class PowerCutOnDisk : public ::testing::TestWithParam<Disk> {};

TEST_P(PowerCutOnDisk, LosesNothingThatWasAcknowledged) {
  LoopMount disk(GetParam());
  if (support::kSanitizer) {
    GTEST_SKIP() << "the release build cuts the power; what a sanitizer sees of it, the model's cuts show too";
  }
  if (!disk.mounted()) GTEST_SKIP() << GetParam().name << " on a loop device cannot be made here: " << disk.reason();
  const CrashRun run("--set parallel.tp=2 --set checkpoint.interval=2", 60);
  const bool is_whole = support::sweep_stride(2) == 1;
  const Cuts good = cut_power(disk, run, is_whole ? 30 : 10, "");
  EXPECT_EQ(good.lost, 0) << good.first_problem;
  EXPECT_GT(good.made, is_whole ? 10 : 3);
  RecordProperty("cuts", good.made);
  // The control: the same program without a single sync must lose checkpoints, else these cuts prove nothing.
  const Cuts bad = cut_power(disk, run, is_whole ? 10 : 6, "*:sync:*:skip,*:sync_dir:*:skip");
  EXPECT_GT(bad.lost, is_whole ? 3 : 0);
  RecordProperty("lost_by_the_control", bad.lost);
}

INSTANTIATE_TEST_SUITE_P(Disks, PowerCutOnDisk,
                         ::testing::Values(Disk{"ext4", "mkfs.ext4 -q -F", "64M"},
                                           Disk{"xfs", "mkfs.xfs -q -f", "320M"}),
                         [](const auto& suite) { return suite.param.name; });

}  // namespace
}  // namespace megalith
