#include "megalith/io/save_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fault_fs.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

using testing::ElementsAre;
using testing::MatchesRegex;

TEST(StepFolder, NamesReadBack) {
  for (const StepFolder folder :
       {StepFolder{0}, StepFolder{100}, StepFolder{99999999, 2}, StepFolder{123456789012, 17}}) {
    EXPECT_EQ(parse_step_folder(folder.name()), folder);
  }
  EXPECT_EQ(StepFolder{100}.name(), "step_00000100");
  EXPECT_EQ((StepFolder{100, 2}.name()), "step_00000100.r2");
}

TEST(StepFolder, OnlyOurExactNames) {
  for (const char* name : {"", "step_", "step_100", "step_000000100", "step_00000100.r1", "step_00000100.r02",
                           "step_00000100.r", "step_00000100 ", "step_-0000100", "Step_00000100", "step_00000100.r-2",
                           "step_00000100.tmp-0123456789abcdef", "step_00000100.r2.bak", "step_99999999999999999999"}) {
    EXPECT_EQ(parse_step_folder(name), std::nullopt) << name;
  }
}

/// One save of a file "shard_0.safetensors".
StepFolder save(Fs& fs, const Path& root, Index step, std::string_view contents) {
  const Path staging = begin_save(fs, root, step);
  const auto file = fs.create(staging / "shard_0.safetensors");
  file->write(contents);
  file->sync();
  file->close();
  return publish(fs, staging, "manifest of " + std::string(contents));
}

std::vector<std::string> names(const std::vector<StepFolder>& folders) {
  std::vector<std::string> result;
  for (const StepFolder& folder : folders) result.push_back(folder.name());
  return result;
}

TEST(SaveProtocol, PublishesNewestFirstAndNeverWritesTwiceIntoAFolder) {
  const TempDir dir;
  const auto fs = posix_fs();
  const Path root = dir / "a/checkpoints";
  EXPECT_TRUE(published(*fs, root).empty());
  save(*fs, root, 200, "b");
  save(*fs, root, 100, "a");
  EXPECT_EQ(save(*fs, root, 100, "again").name(), "step_00000100.r2");
  EXPECT_EQ(save(*fs, root, 100, "third").name(), "step_00000100.r3");
  fs->make_dir(root / "step_00000300.tmp-0123456789abcdef");
  fs->make_dir(root / "notes");
  EXPECT_THAT(names(published(*fs, root)),
              ElementsAre("step_00000200", "step_00000100.r3", "step_00000100.r2", "step_00000100"));
  EXPECT_EQ(read_all(root / "step_00000100/shard_0.safetensors"), "a");
  EXPECT_EQ(read_all(root / "step_00000100.r2/MANIFEST"), "manifest of again");
}

// What makes a save survive a power cut is the order: everything is synced before the name that promises it appears.
TEST(SaveProtocol, SyncsEverythingBeforeItPromises) {
  const TempDir dir;
  FaultFs fs(posix_fs(), {}, 0);
  fs.record();
  save(fs, dir / "a/b", 7, "x");
  std::vector<std::string> order;
  for (std::string line : fs.recorded()) {
    if (line.starts_with("list") || line.starts_with("is_") || line.starts_with("exists")) continue;
    const std::size_t space = line.find(' ');
    std::string path = line.substr(space + 1);
    path.erase(0, dir.path().string().size());
    if (const std::size_t tmp = path.find(".tmp-"); tmp != std::string::npos) path.replace(tmp, 21, ".tmp");
    order.push_back(line.substr(0, space + 1) + path);
  }
  EXPECT_THAT(order, ElementsAre("make_dir /a", "sync_dir ", "make_dir /a/b", "sync_dir /a",
                                 "make_dir /a/b/step_00000007.tmp", "create /a/b/step_00000007.tmp/shard_0.safetensors",
                                 "write /a/b/step_00000007.tmp/shard_0.safetensors",
                                 "sync /a/b/step_00000007.tmp/shard_0.safetensors",
                                 "close /a/b/step_00000007.tmp/shard_0.safetensors",
                                 "create /a/b/step_00000007.tmp/MANIFEST", "write /a/b/step_00000007.tmp/MANIFEST",
                                 "sync /a/b/step_00000007.tmp/MANIFEST", "close /a/b/step_00000007.tmp/MANIFEST",
                                 "sync_dir /a/b/step_00000007.tmp", "rename /a/b/step_00000007.tmp", "sync_dir /a/b"));
}

TEST(SaveProtocol, PublishRefusesAFolderThatIsNoStaging) {
  const TempDir dir;
  EXPECT_THROW(publish(*posix_fs(), dir.path(), "m"), InternalError);
  EXPECT_THROW(begin_save(*posix_fs(), dir.path(), -1), InternalError);
}

TEST(SaveProtocol, RemoveLeavesNothing) {
  const TempDir dir;
  const auto fs = posix_fs();
  const StepFolder folder = save(*fs, dir.path(), 1, "x");
  EXPECT_TRUE(remove_published(*fs, dir.path(), folder).empty());
  EXPECT_TRUE(fs->list(dir.path()).empty());
}

TEST(SaveProtocol, RemoveTouchesNoForeignFileAndFollowsNoLink) {
  const TempDir dir;
  const auto fs = posix_fs();
  const StepFolder noted = save(*fs, dir / "ours", 1, "x");
  write_all(dir / "ours/step_00000001/notes.txt", "keep me");
  EXPECT_THAT(remove_published(*fs, dir / "ours", noted), ElementsAre("notes.txt"));
  EXPECT_EQ(read_all(dir / "ours/step_00000001/notes.txt"), "keep me");
  EXPECT_EQ(read_all(dir / "ours/step_00000001/shard_0.safetensors"), "x");

  save(*fs, dir / "archive", 2, "precious");
  std::filesystem::create_directory_symlink(dir / "archive/step_00000002", dir / "ours/step_00000002");
  EXPECT_THAT(remove_published(*fs, dir / "ours", StepFolder{2}), ElementsAre("step_00000002"));
  EXPECT_EQ(read_all(dir / "archive/step_00000002/shard_0.safetensors"), "precious");
}

TEST(SaveProtocol, AbandonRemovesAFailedSave) {
  const TempDir dir;
  FaultFs fs(posix_fs(), parse_faults("0:sync:2:EIO"), 0);
  const Path staging = begin_save(fs, dir.path(), 5);
  const auto file = fs.create(staging / "a.safetensors");
  file->sync();
  EXPECT_THROW(publish(fs, staging, "m"), IoError);
  abandon(fs, staging);
  EXPECT_TRUE(fs.list(dir.path()).empty());
  EXPECT_NO_THROW(abandon(fs, staging));
}

TEST(Leftovers, CleansWhatIsOursAndDeadOnly) {
  const TempDir dir;
  const auto fs = posix_fs();
  const Path root = dir / "ck";
  save(*fs, root, 1, "published");
  write_all(begin_save(*fs, root, 2) / "shard_0.safetensors", "half");
  begin_save(*fs, root, 3);
  const Path mixed = begin_save(*fs, root, 4);
  write_all(mixed / "shard_0.safetensors", "half");
  write_all(mixed / "thesis.tex", "foreign");
  const Path trash = root / ".trash-step_00000000.r2-0123456789abcdef";
  fs->make_dir(trash);
  write_all(trash / "MANIFEST", "m");
  const std::vector<std::string> foreign = {".trash-mine", ".trash-step_00000000-xyz", "step_00000009.tmp-backup",
                                            "step_9.tmp-0123456789abcdef", "notes.tmp-0123456789abcdef"};
  for (const std::string& name : foreign) fs->make_dir(root / name);

  const RunLock lock = RunLock::take(root);
  const Leftovers done = clean_leftovers(*fs, root, lock);
  EXPECT_EQ(done.staging, 2);
  EXPECT_EQ(done.trash, 1);
  EXPECT_THAT(done.kept, ElementsAre(mixed.filename().string()));
  EXPECT_EQ(read_all(mixed / "thesis.tex"), "foreign");
  EXPECT_EQ(read_all(mixed / "shard_0.safetensors"), "half");
  for (const std::string& name : foreign) EXPECT_TRUE(fs->is_dir(root / name)) << name;
  EXPECT_EQ(read_all(root / "step_00000001/shard_0.safetensors"), "published");
  EXPECT_THAT(clean_leftovers(*fs, root, lock).kept, ElementsAre(mixed.filename().string()));
}

TEST(CleanTemporaries, RemovesUnfinishedFilesOfOursOnly) {
  const TempDir dir;
  const auto fs = posix_fs();
  const RunLock lock = RunLock::take(dir.path());
  write_all(dir / "recipe.toml.tmp-0123456789abcdef", "half");
  for (const char* name : {"recipe.toml", "notes.tmp-mine", ".tmp-0123456789abcdef"}) write_all(dir / name, "kept");
  fs->make_dir(dir / "step_00000003.tmp-0123456789abcdef");
  EXPECT_EQ(clean_temporaries(*fs, dir.path(), lock), 1);
  EXPECT_EQ(fs->list(dir.path()).size(), 5u);
}

TEST(CleanLeftovers, WantsTheLockOfTheFolder) {
  const TempDir dir;
  const auto fs = posix_fs();
  fs->make_dir(dir / "checkpoints");
  const RunLock lock = RunLock::take(dir / "out");
  EXPECT_THROW(clean_leftovers(*fs, dir / "checkpoints", lock), InternalError);
}

TEST(Temporary, SuffixesAreUniqueAndRecognised) {
  EXPECT_THAT(temporary_suffix(), MatchesRegex("\\.tmp-[0-9a-f]{16}"));
  EXPECT_NE(temporary_suffix(), temporary_suffix());
}

}  // namespace
}  // namespace megalith::io
