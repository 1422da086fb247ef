#include <atomic>
#include <cstring>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fs.h"
#include "megalith/io/problem_text.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

using testing::HasSubstr;

TEST(PosixFs, WritesAndMaps) {
  const TempDir dir;
  const auto fs = posix_fs();
  const auto file = fs->create(dir / "a");
  file->write("hello ");
  file->write("world");
  file->sync();
  file->close();
  EXPECT_EQ(fs->map(dir / "a").text(), "hello world");
  EXPECT_EQ(fs->file_size(dir / "a"), 11u);
  EXPECT_GT(fs->free_bytes(dir.path()), 0u);
  const auto log = fs->append(dir / "a");
  log->write("!");
  log->close();
  EXPECT_EQ(read_all(dir / "a"), "hello world!");
}

TEST(PosixFs, MappingOutlivesItsFile) {
  const TempDir dir;
  const auto fs = posix_fs();
  write_all(dir / "a", "contents");
  const MappedFile copy = fs->map(dir / "a");
  fs->unlink(dir / "a");
  EXPECT_FALSE(fs->exists(dir / "a"));
  EXPECT_EQ(copy.text(), "contents");
}

TEST(PosixFs, EmptyFileMapsToNothing) {
  const TempDir dir;
  write_all(dir / "empty", "");
  EXPECT_TRUE(posix_fs()->map(dir / "empty").bytes().empty());
}

TEST(PosixFs, CreateRefusesWhatExists) {
  const TempDir dir;
  write_all(dir / "a", "old");
  EXPECT_EQ(error_of<IoError>([&] { posix_fs()->create(dir / "a"); }),
            str("cannot create ", (dir / "a").string(), ": file exists"));
  EXPECT_EQ(read_all(dir / "a"), "old");
}

TEST(PosixFs, MapRefusesWhatIsNoFile) {
  const TempDir dir;
  const auto fs = posix_fs();
  EXPECT_THAT(error_of<InputError>([&] { fs->map(dir / "absent"); }), HasSubstr("there is no such file"));
  EXPECT_THAT(error_of<InputError>([&] { fs->map(dir.path()); }), HasSubstr("is not a regular file"));
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);  // opening it for reading would wait for a writer
  EXPECT_THAT(error_of<InputError>([&] { fs->map(dir / "fifo"); }), HasSubstr("is not a regular file"));
}

TEST(PosixFs, ListsSortedAndEmptyWhenAbsent) {
  const TempDir dir;
  const auto fs = posix_fs();
  for (const char* name : {"b", "a", ".hidden"}) write_all(dir / name, "");
  fs->make_dir(dir / "c/d");
  fs->make_dir(dir / "c/d");
  EXPECT_EQ(fs->list(dir.path()), (std::vector<std::string>{".hidden", "a", "b", "c"}));
  EXPECT_TRUE(fs->list(dir / "absent").empty());
  EXPECT_THAT(error_of<IoError>([&] { fs->list(dir / "a"); }), HasSubstr("cannot list the folder "));
  EXPECT_TRUE(fs->is_dir(dir / "c/d"));
  EXPECT_FALSE(fs->is_dir(dir / "a"));
  EXPECT_FALSE(fs->is_dir(dir / "a/below-a-file"));
}

TEST(PosixFs, LinksAreSeen) {
  const TempDir dir;
  const auto fs = posix_fs();
  fs->make_dir(dir / "real");
  std::filesystem::create_directory_symlink(dir / "real", dir / "link");
  EXPECT_TRUE(fs->is_link(dir / "link"));
  EXPECT_TRUE(fs->is_dir(dir / "link"));
  EXPECT_FALSE(fs->is_link(dir / "real"));
  EXPECT_FALSE(fs->is_link(dir / "absent"));
}

TEST(PosixFs, ErrorsNamePathOperationAndReason) {
  const TempDir dir;
  const auto fs = posix_fs();
  const std::string absent = (dir / "absent").string();
  EXPECT_EQ(error_of<IoError>([&] { fs->unlink(absent); }),
            str("cannot remove ", absent, ": no such file or directory"));
  EXPECT_EQ(error_of<IoError>([&] { fs->rename(absent, dir / "b"); }),
            str("cannot rename ", absent, " to ", (dir / "b").string(), ": no such file or directory"));
  EXPECT_EQ(error_of<IoError>([&] { fs->sync_dir(absent); }),
            str("cannot sync the folder ", absent, ": no such file or directory"));
  EXPECT_EQ(error_of<IoError>([&] { fs->file_size(absent); }),
            str("cannot look at ", absent, ": no such file or directory"));
  fs->make_dir(dir / "full");
  write_all(dir / "full/x", "");
  EXPECT_THAT(error_of<IoError>([&] { fs->remove_dir(dir / "full"); }),
              HasSubstr(str("cannot remove the folder ", (dir / "full").string(), ": directory not empty")));
  write_all(dir / "file", "");
  EXPECT_THAT(error_of<IoError>([&] { fs->make_dir(dir / "file"); }), HasSubstr("cannot make the folder "));
}

TEST(PosixFs, WhatIsNotFoundSaysWhereItWasLookedFor) {
  const std::string here = str("; it was looked for in ", std::filesystem::current_path().string());
  EXPECT_EQ(error_of<InputError>([] { posix_fs()->map("no/such"); }), "[no/such] there is no such file" + here);
  EXPECT_EQ(error_of<IoError>([] { posix_fs()->create("no/such"); }),
            "cannot create no/such: no such file or directory" + here);
  EXPECT_EQ(error_of<IoError>([] { publish_file(*posix_fs(), "no/such", "x"); }),
            "cannot create no/such: there is no folder no" + here + "; make it first");
  EXPECT_EQ(error_of<InputError>([] { posix_fs()->map("/no/such"); }), "[/no/such] there is no such file");
}

TEST(PosixFs, ADanglingLinkIsNamedAsOne) {
  const TempDir dir;
  std::filesystem::create_symlink("gone/b.txt", dir / "a.txt");
  std::filesystem::create_symlink("/no/folder", dir / "folder");
  const auto link = [&](const char* name, const char* target) {
    return str("; ", (dir / name).string(), " is a link to ", target, ", which is not there");
  };
  EXPECT_EQ(error_of<InputError>([&] { posix_fs()->map(dir / "a.txt"); }),
            str("[", (dir / "a.txt").string(), "] there is no such file", link("a.txt", "gone/b.txt")));
  EXPECT_EQ(
      error_of<IoError>([&] { posix_fs()->create(dir / "folder/c"); }),
      str("cannot create ", (dir / "folder/c").string(), ": no such file or directory", link("folder", "/no/folder")));
  EXPECT_EQ(looked_for_in(dir / "folder"), link("folder", "/no/folder"));
  write_all(dir / "there", "");
  std::filesystem::create_symlink(dir / "there", dir / "good");
  EXPECT_EQ(looked_for_in(dir / "good"), "");
}

TEST(PosixFs, WhatCannotBeReadSaysSo) {
  const TempDir dir;
  std::filesystem::create_symlink("loop", dir / "loop");
  EXPECT_EQ(error_of<IoError>([&] { posix_fs()->map(dir / "loop"); }),
            str("cannot read ", (dir / "loop").string(), ": too many levels of symbolic links"));
  EXPECT_EQ(error_of<IoError>([&] { posix_fs()->exists(dir / "loop"); }),
            str("cannot look for ", (dir / "loop").string(), ": too many levels of symbolic links"));
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  write_all(dir / "a", "secret");
  ASSERT_EQ(::chmod((dir / "a").c_str(), 0), 0);
  EXPECT_EQ(error_of<IoError>([&] { posix_fs()->map(dir / "a"); }),
            str("cannot read ", (dir / "a").string(), ": permission denied"));
}

TEST(PosixFs, FullDeviceIsAnIoErrorAndFinal) {
  const auto file = posix_fs()->append("/dev/full");
  EXPECT_EQ(error_of<IoError>([&] { file->write("x"); }),
            "cannot write /dev/full: no space left on device: free some space, or write elsewhere");
  // Nothing that comes later may look like success.
  EXPECT_EQ(error_of<IoError>([&] { file->sync(); }), "cannot sync /dev/full: an earlier write or sync of it failed");
}

// Neither /dev/null nor a pipe that somebody reads may become a file.
TEST(PosixFs, WhatIsNoFileIsNotReplaced) {
  const TempDir dir;
  const Path pipe = dir / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(error_of<IoError>([&] { publish_file(*posix_fs(), pipe, "x"); }),
            str("cannot replace ", pipe.string(), ": it is no regular file; name another"));
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_EQ(posix_fs()->list(dir.path()), std::vector<std::string>{"pipe"});
}

void ignore_signal(int) {}

// A FIFO whose reader is slow makes write() return short and be interrupted, again and again.
TEST(PosixFs, InterruptedAndShortWritesLoseNothing) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = ignore_signal;  // without SA_RESTART, so that calls do return EINTR
  ASSERT_EQ(::sigaction(SIGUSR2, &action, &before), 0);

  std::string sent(1 << 20, '\0');
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 2654435761u >> 13);
  std::string received;
  const int in = ::open((dir / "fifo").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(in, 0);
  ASSERT_EQ(::fcntl(in, F_SETFL, 0), 0);
  std::atomic<bool> written{false};
  std::thread writer([&] {
    const auto file = posix_fs()->append(dir / "fifo");
    file->write(sent);
    file->close();
    written = true;
  });
  std::thread interrupter([&, target = writer.native_handle()] {
    while (!written) {
      ::pthread_kill(target, SIGUSR2);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  std::string piece(10007, '\0');
  while (received.size() < sent.size()) {
    const ::ssize_t size = ::read(in, piece.data(), piece.size());
    if (size <= 0) continue;
    received += std::string_view(piece).substr(0, static_cast<std::size_t>(size));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  interrupter.join();
  writer.join();
  ::close(in);
  ::sigaction(SIGUSR2, &before, nullptr);
  EXPECT_TRUE(received == sent);
}

TEST(PublishFile, ReplacesWhole) {
  const TempDir dir;
  const auto fs = posix_fs();
  publish_file(*fs, dir / "a", "first");
  publish_file(*fs, dir / "a", "second");
  EXPECT_EQ(read_all(dir / "a"), "second");
  EXPECT_EQ(fs->list(dir.path()), std::vector<std::string>{"a"});
}

TEST(PublishFile, NamesTheFolderThatIsMissing) {
  const TempDir dir;
  const Path path = dir / "none" / "a";
  EXPECT_EQ(error_of<IoError>([&] { publish_file(*posix_fs(), path, "x"); }),
            str("cannot create ", path.string(), ": there is no folder ", (dir / "none").string(), "; make it first"));
}

}  // namespace
}  // namespace megalith::io
