#include "megalith/checkpoint/choose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/io/fault_fs.h"
#include "megalith/io/retrying_fs.h"

#include "tests/checkpoint/fixture.h"
#include "tests/io/resealed.h"
#include "tests/io/temp_dir.h"

namespace megalith::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ThreeCheckpoints : public testing::Test {
 protected:
  ThreeCheckpoints() {
    for (const Index step : {10, 20, 30}) save_checkpoint(*fs_, root(), step, state_);
  }
  const io::Path& root() const { return dir_.path(); }
  void flip(const io::Path& file) {
    std::string bytes = read_all(file);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
    write_all(file, bytes);
  }
  void make_newer(const std::string& folder) {
    const io::Path manifest = root() / folder / "MANIFEST";
    write_all(manifest, resealed(read_all(manifest), "\"version\": 2", "\"version\": 3"));
  }
  /// A manifest of a later version, as such a program might write it: another order, another seal.
  void make_later(const std::string& folder, const std::string& manifest) {
    write_all(root() / folder / "MANIFEST", manifest);
  }
  /// As a program's: faults, and reads that are tried again.
  std::shared_ptr<io::Fs> failing(const std::string& faults) const {
    return io::retrying_fs(std::make_shared<io::FaultFs>(fs_, io::parse_faults(faults), 0));
  }
  std::vector<std::string> left() {
    std::vector<std::string> names;
    for (const io::StepFolder& folder : io::published(*fs_, root())) names.push_back(folder.name());
    return names;
  }

  const std::vector<Global> state_ = random_state(1);
  const std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  std::vector<io::StepFolder> verified_;
  const TempDir dir_;
};

TEST_F(ThreeCheckpoints, NewestWins) {
  const Choice choice = find_newest_valid(*fs_, root(), OnCorrupt::previous);
  EXPECT_EQ(choice.folder.step, 30);
  EXPECT_THAT(choice.rejected, IsEmpty());
}

TEST_F(ThreeCheckpoints, DamagedOnesAreSkippedAndReported) {
  flip(root() / "step_00000030/MANIFEST");
  std::filesystem::remove(root() / "step_00000020/shard_00001.safetensors");
  const Choice choice = find_newest_valid(*fs_, root(), OnCorrupt::previous);
  EXPECT_EQ(choice.folder.step, 10);
  ASSERT_EQ(choice.rejected.size(), 2u);
  EXPECT_EQ(choice.rejected[0].folder.step, 30);
  EXPECT_THAT(choice.rejected[0].reason, HasSubstr("step_00000030/MANIFEST"));
  EXPECT_THAT(choice.rejected[1].reason, HasSubstr("file shard_00001.safetensors: is missing"));
  EXPECT_THAT(error_of<InputError>([&] { find_newest_valid(*fs_, root(), OnCorrupt::fail); }),
              HasSubstr("step_00000030/MANIFEST"));
}

TEST_F(ThreeCheckpoints, WhatFailedWhileItWasReadIsNotChosenAgain) {
  const std::vector<Rejected> unusable = {{{30}, "bytes 0 to 4096 are damaged"}};
  const Choice choice = find_newest_valid(*fs_, root(), OnCorrupt::previous, unusable);
  EXPECT_EQ(choice.folder.step, 20);
  ASSERT_EQ(choice.rejected.size(), 1u);
  EXPECT_EQ(choice.rejected[0].reason, "bytes 0 to 4096 are damaged");
  EXPECT_EQ(error_of<InputError>([&] { find_newest_valid(*fs_, root(), OnCorrupt::fail, unusable); }),
            "bytes 0 to 4096 are damaged");
}

TEST_F(ThreeCheckpoints, NoneValidSaysWhy) {
  for (const char* step : {"10", "20", "30"}) flip(root() / ("step_000000" + std::string(step)) / "MANIFEST");
  try {
    find_newest_valid(*fs_, root(), OnCorrupt::previous);
    FAIL() << "nothing was thrown";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ExitCode::no_checkpoint);
    EXPECT_THAT(error.what(), HasSubstr("there is no valid checkpoint\n  step_00000030: ["));
    EXPECT_THAT(error.what(), HasSubstr("\n  step_00000010: ["));
  }
  EXPECT_THROW(find_newest_valid(*fs_, root() / "absent", OnCorrupt::fail), CheckpointError);
}

TEST_F(ThreeCheckpoints, ReplacedByOtherThings) {
  std::filesystem::remove_all(root() / "step_00000030");
  write_all(root() / "step_00000030", "a file");
  write_all(root() / "step_00000020/MANIFEST", "");
  EXPECT_EQ(find_newest_valid(*fs_, root(), OnCorrupt::previous).folder.step, 10);
}

TEST_F(ThreeCheckpoints, OneOfANewerVersionIsRefusedNotPassedOver) {
  make_newer("step_00000030");
  for (const OnCorrupt on_corrupt : {OnCorrupt::previous, OnCorrupt::fail}) {
    try {
      find_newest_valid(*fs_, root(), on_corrupt);
      FAIL() << "nothing was thrown";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint_refused);
      EXPECT_THAT(error.what(),
                  HasSubstr("step_00000030/MANIFEST] version = 3: this program reads versions 1 to 2; use "));
    }
  }
}

TEST_F(ThreeCheckpoints, PruneKeepsOneOfANewerVersion) {
  make_newer("step_00000010");
  save_checkpoint(*fs_, root(), 40, state_);
  const Pruned pruned = prune(*fs_, root(), 2, verified_);
  EXPECT_THAT(left(), ElementsAre("step_00000040", "step_00000030", "step_00000010"));
  ASSERT_EQ(pruned.kept_unread.size(), 1u);
  EXPECT_EQ(pruned.kept_unread[0].step, 10);
}

const std::string kOtherSeals[] = {
    "{\"version\": 7, \"seal\": \"sha256 0123\", \"parts\": []}\n",
    "{\n \"checksum\": \"" + std::string(32, '5') + "\",\n \"version\": 7,\n \"parts\": [\n ]\n}\n"};

TEST_F(ThreeCheckpoints, OneOfANewerVersionWithAnotherSealIsRefusedNotPassedOver) {
  for (const std::string& manifest : kOtherSeals) {
    make_later("step_00000030", manifest);
    for (const OnCorrupt on_corrupt : {OnCorrupt::previous, OnCorrupt::fail}) {
      EXPECT_THAT(error_of<CheckpointError>([&] { find_newest_valid(*fs_, root(), on_corrupt); }),
                  HasSubstr("step_00000030/MANIFEST] version = 7: this program reads versions 1 to 2; use "));
    }
  }
}

TEST_F(ThreeCheckpoints, PruneKeepsOneOfANewerVersionWithAnotherSeal) {
  for (const std::string& manifest : kOtherSeals) {
    make_later("step_00000010", manifest);
    save_checkpoint(*fs_, root(), 40, state_);
    EXPECT_THAT(prune(*fs_, root(), 2, verified_).kept_unread, ElementsAre(io::StepFolder{10}));
    EXPECT_EQ(read_all(root() / "step_00000010/MANIFEST"), manifest);
  }
}

TEST_F(ThreeCheckpoints, PruneKeepsWhatHasNoManifestToRead) {
  flip(root() / "step_00000010/MANIFEST");
  std::filesystem::remove(root() / "step_00000020/MANIFEST");
  for (const Index step : {40, 50}) save_checkpoint(*fs_, root(), step, state_);
  const Pruned pruned = prune(*fs_, root(), 2, verified_);
  EXPECT_THAT(pruned.removed, ElementsAre(io::StepFolder{30}));
  EXPECT_THAT(pruned.kept_unread, ElementsAre(io::StepFolder{20}, io::StepFolder{10}));
  EXPECT_THAT(left(), ElementsAre("step_00000050", "step_00000040", "step_00000020", "step_00000010"));
}

TEST_F(ThreeCheckpoints, AFailureThatPassesIsTriedAgain) {
  for (const char* fault : {"0:map:1:EIO", "0:map:1:ESTALE", "0:exists:2:EMFILE", "0:list:1:EIO"}) {
    const std::shared_ptr<io::Fs> fs = failing(fault);
    const Choice choice = find_newest_valid(*fs, root(), OnCorrupt::previous);
    EXPECT_EQ(choice.folder.step, 30) << fault;
    EXPECT_THAT(choice.rejected, IsEmpty()) << fault;
  }
}

TEST_F(ThreeCheckpoints, AFailureThatStaysIsNoDamage) {
  for (const char* fault : {"0:map:1+:ESTALE", "0:map:1:EACCES", "0:exists:1+:EIO"}) {
    const std::shared_ptr<io::Fs> fs = failing(fault);
    EXPECT_THAT(error_of<IoError>([&] { find_newest_valid(*fs, root(), OnCorrupt::previous); }),
                HasSubstr("(injected)"))
        << fault;
  }
  const std::shared_ptr<io::Fs> fs = failing("0:map:1+:EIO");
  EXPECT_THROW(prune(*fs, root(), 2, verified_), IoError);
  EXPECT_EQ(left().size(), 3u);
}

TEST_F(ThreeCheckpoints, PruneKeepsTheNewest) {
  save_checkpoint(*fs_, root(), 40, state_);
  const Pruned pruned = prune(*fs_, root(), 2, verified_);
  EXPECT_EQ(pruned.removed.size(), 2u);
  EXPECT_THAT(left(), ElementsAre("step_00000040", "step_00000030"));
  EXPECT_THAT(prune(*fs_, root(), 0, verified_).removed, IsEmpty());  // two always stay
}

TEST_F(ThreeCheckpoints, PruneNeverCountsADamagedOne) {
  flip(root() / "step_00000030/shard_00000.safetensors");
  prune(*fs_, root(), 2, verified_);
  EXPECT_THAT(left(), ElementsAre("step_00000030", "step_00000020", "step_00000010"));
  save_checkpoint(*fs_, root(), 40, state_);
  prune(*fs_, root(), 2, verified_);
  EXPECT_THAT(left(), ElementsAre("step_00000040", "step_00000030", "step_00000020"));
}

TEST_F(ThreeCheckpoints, ARuleKeepsOneNewestAndEveryTwentiethStep) {
  save_checkpoint(*fs_, root(), 40, state_);
  save_checkpoint(*fs_, root(), 50, state_);
  flip(root() / "step_00000050/shard_00001.safetensors");
  write_all(root() / "step_00000010/notes.txt", "mine");
  std::vector<PruneStep> steps = plan_prune(*fs_, root(), {.newest = 1, .every = 20}, verified_);
  std::vector<Fate> fates;
  for (const PruneStep& step : steps) fates.push_back(step.fate);
  using enum Fate;
  EXPECT_THAT(fates, ElementsAre(damaged, newest, removed, every, foreign));
  EXPECT_EQ(left().size(), 5U) << "a plan changes nothing";
  write_all(root() / "step_00000030/late.txt", "mine");
  remove_pruned(*fs_, root(), steps);
  EXPECT_EQ(steps[2].fate, foreign) << "files that came after the plan";
  std::filesystem::remove(root() / "step_00000030/late.txt");
  steps = plan_prune(*fs_, root(), {.newest = 1, .every = 20}, verified_);
  remove_pruned(*fs_, root(), steps);
  EXPECT_THAT(left(), ElementsAre("step_00000050", "step_00000040", "step_00000020", "step_00000010"));
}

TEST_F(ThreeCheckpoints, WithTooFewWholeOnesNothingIsRemoved) {
  flip(root() / "step_00000030/shard_00000.safetensors");
  for (const PruneStep& step : plan_prune(*fs_, root(), {.newest = 3}, verified_)) EXPECT_NE(step.fate, Fate::removed);
}

TEST_F(ThreeCheckpoints, PruneLeavesForeignFilesAlone) {
  write_all(root() / "step_00000010/notes.txt", "mine");
  const Pruned pruned = prune(*fs_, root(), 2, verified_);
  ASSERT_EQ(pruned.kept_foreign.size(), 1u);
  EXPECT_EQ(pruned.kept_foreign[0].step, 10);
  EXPECT_EQ(load_checkpoint(*fs_, root() / "step_00000010"), state_);
}

}  // namespace
}  // namespace megalith::checkpoint
