#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/corpus/dedup.h"
#include "megalith/io/fault_fs.h"
#include "megalith/io/json_document.h"

#include "tests/corpus/dedup_run.h"

namespace megalith::corpus {
namespace {

using support::files_of;
using support::line;
using support::pair_of_texts;
using support::words;

io::Fault fault_at(std::uint64_t n, io::Fault::Action action) {
  io::Fault fault;
  fault.first = fault.last = n;
  fault.action = action;
  fault.error_number = ENOSPC;
  return fault;
}

class DedupRestart : public ::testing::Test {
 protected:
  DedupRestart() {
    for (const char* name : {"one.jsonl", "two.jsonl"}) {
      std::string texts;
      for (int i = 0; i < 6; ++i) texts += line(pair_of_texts(str("p", i, "x"), 60 + 8 * i, 100).first);
      for (int i = 0; i < 3; ++i) texts += line(words("copy", 20)) + line(words(str(name, i), 20));
      texts += line(words("few", 20)) + line(words("few", 20));  // a bucket that is not crowded
      write_all(dir_ / name, texts);
      options_.inputs.push_back(dir_ / name);
    }
    options_.banding = {4, 2};
    options_.max_bucket = 4;
    options_.memory = std::size_t{16} << 20;
    options_.output = dir_ / "want";
    dedup(*io::posix_fs(), options_);
    want_ = files_of(options_.output);
  }
  std::uint64_t operations() {
    options_.output = dir_ / "counted";
    io::FaultFs fs(io::posix_fs(), {}, 0);
    dedup(fs, options_);
    return fs.count();
  }

  TempDir dir_;
  DedupOptions options_;
  std::map<std::string, std::string> want_;
};

// Every operation of the whole run, two ways: it fails (full disk), or the process is killed in the middle of it.
TEST_F(DedupRestart, GoesOnAfterAFailureOfAnyOperation) {
  const std::uint64_t all = operations();
  ASSERT_GT(all, 200u);
  for (std::uint64_t n = 1; n <= all; ++n) {
    options_.output = dir_ / str("error", n);
    io::FaultFs broken(io::posix_fs(), {fault_at(n, io::Fault::Action::short_write)}, 0);
    try {
      dedup(broken, options_);
    } catch (const Error&) {
    }
    for (const auto& [name, contents] : files_of(options_.output)) {
      if (name.front() == '.') continue;
      EXPECT_TRUE(std::filesystem::exists(options_.output / "report.json")) << name << ", operation " << n;
      EXPECT_TRUE(contents == want_.at(name)) << "whole or not there, operation " << n;
    }
    ASSERT_NO_THROW(dedup(*io::posix_fs(), options_)) << "operation " << n;
    ASSERT_TRUE(files_of(options_.output) == want_) << "operation " << n;
    EXPECT_FALSE(std::filesystem::exists(options_.output / "work")) << "operation " << n;
    std::filesystem::remove_all(options_.output);
  }
}

TEST_F(DedupRestart, GoesOnAfterAKillAtAnyOperation) {
  const std::uint64_t all = operations();
  for (std::uint64_t n = 1; n <= all; ++n) {
    options_.output = dir_ / str("kill", n);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      io::FaultFs fs(io::posix_fs(), {fault_at(n, io::Fault::Action::torn)}, 0);
      dedup(fs, options_);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "operation " << n;
    ASSERT_NO_THROW(dedup(*io::posix_fs(), options_)) << "operation " << n;
    ASSERT_TRUE(files_of(options_.output) == want_) << "operation " << n;
    std::filesystem::remove_all(options_.output);
  }
}

/// Runs until the `n`-th sync fails. False when there are fewer.
bool stop_at_sync(const DedupOptions& options, std::uint64_t n) {
  io::Fault fault = fault_at(n, io::Fault::Action::error);
  fault.operation = io::Operation::sync;
  io::FaultFs broken(io::posix_fs(), {fault}, 0);
  try {
    dedup(broken, options);
    return false;
  } catch (const IoError&) {
    return true;
  }
}

/// The same file with one bit changed, at a place that differs from call to call.
void flip_a_bit(const io::Path& file) {
  static std::uint64_t drawn = 0;
  const std::uint64_t word = RandomSite{.seed = 5}.word(drawn++);
  std::string bytes = read_all(file);
  bytes[word / 8 % bytes.size()] ^= static_cast<char>(1 << word % 8);
  write_all(file, bytes);
}

// Every file of the work folder, wherever the run has stopped.
TEST_F(DedupRestart, RefusesDamagedWork) {
  options_.output = dir_ / "damaged";
  const io::Path snapshot = dir_ / "snapshot";
  std::set<std::string> seen, refused;
  for (std::uint64_t n = 2; stop_at_sync(options_, n); n += 3) {
    std::filesystem::rename(options_.output, snapshot);
    for (const auto& entry : std::filesystem::directory_iterator(snapshot / "work")) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(".tmp") || entry.file_size() == 0) continue;
      std::filesystem::copy(snapshot, options_.output, std::filesystem::copy_options::recursive);
      flip_a_bit(options_.output / "work" / name);
      seen.insert(name);
      try {
        dedup(*io::posix_fs(), options_);
        EXPECT_TRUE(files_of(options_.output) == want_) << name << " is not needed any more, sync " << n;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::bad_input) << error.what();
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
        EXPECT_NE(std::string(error.what()).find("remove the work folder"), std::string::npos) << error.what();
        std::filesystem::remove_all(options_.output / "work");
        EXPECT_TRUE(dedup(*io::posix_fs(), options_).is_complete) << "after the work folder was removed";
        EXPECT_TRUE(files_of(options_.output) == want_) << name << ", sync " << n;
        refused.insert(name);
      }
      std::filesystem::remove_all(options_.output);
    }
    std::filesystem::remove_all(snapshot);
  }
  seen.erase("listed-00000");  // marks that it is there, and no more
  EXPECT_EQ(refused, seen);
  EXPECT_GT(seen.size(), 25u);
}

TEST_F(DedupRestart, RefusesWorkOfAnEarlierFormat) {
  options_.output = dir_ / "earlier";
  ASSERT_TRUE(stop_at_sync(options_, 6));
  const io::Path run = options_.output / "work" / "run.json";
  nlohmann::ordered_json settings = nlohmann::ordered_json::parse(read_all(run));
  settings.erase(std::prev(settings.end()));  // its checksum
  settings["work_format"] = 3;
  std::filesystem::remove(run);
  io::publish_file(*io::posix_fs(), run, io::seal_json(settings));
  EXPECT_NE(error_of<CheckpointError>([&] { dedup(*io::posix_fs(), options_); }).find("work_format = 3"),
            std::string::npos);
}

TEST_F(DedupRestart, DoesNotRepeatWhatIsDone) {
  const std::uint64_t all = operations();
  options_.output = dir_ / "twice";
  ASSERT_TRUE(stop_at_sync(options_, 6));  // run.json, four files of signatures, pairs
  io::FaultFs fs(io::posix_fs(), {}, 0);
  dedup(fs, options_);
  EXPECT_LT(fs.count() + 10, all) << "the signatures are there";
  EXPECT_TRUE(files_of(options_.output) == want_);
}

TEST_F(DedupRestart, RefusesAnInputThatWasChangedAtTheSameSize) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1} << 20}) {
    std::string texts = read_all(dir_ / "one.jsonl");
    if (size > texts.size()) texts += "{\"text\": \"" + std::string(size, 'x') + "\"}\n";
    write_all(dir_ / "one.jsonl", texts);
    for (const std::size_t at : {std::size_t{12}, texts.size() - 10}) {
      options_.output = dir_ / str("changed", size, "at", at);
      ASSERT_TRUE(stop_at_sync(options_, 6));
      std::string other = texts;
      other[at] = 'q';
      write_all(dir_ / "one.jsonl", other);
      const std::string text = error_of<CheckpointError>([&] { dedup(*io::posix_fs(), options_); });
      EXPECT_NE(text.find("inputs: " + (dir_ / "one.jsonl").string() + " was changed since"), std::string::npos)
          << text;
      write_all(dir_ / "one.jsonl", texts);
      EXPECT_TRUE(dedup(*io::posix_fs(), options_).is_complete) << "as it was";
    }
  }
}

// Between the bytes that the checksum is of. What is left to see is the number of documents.
TEST_F(DedupRestart, AnInputThatHasOtherDocumentsIsRefused) {
  std::string texts;
  for (int i = 0; i < 3000; ++i) texts += line(words(str("long", i), 20));
  const std::string between = "\"}\n{\"text\": \"";
  ASSERT_GT(texts.size(), std::size_t{256} << 10);
  for (const bool is_less : {true, false}) {
    options_.output = dir_ / str("documents", is_less);
    write_all(dir_ / "one.jsonl", texts);
    ASSERT_TRUE(stop_at_sync(options_, 6));
    std::string other = texts;
    const std::size_t at = is_less ? other.find(between, 6000) : other.find(' ', 6000);
    ASSERT_LT(at, 9000u) << "after the first stretch, before the second";
    if (is_less)
      other.replace(at, between.size(), between.size(), ' ');
    else
      other.replace(at + 1, between.size(), between);
    ASSERT_EQ(other.size(), texts.size());
    write_all(dir_ / "one.jsonl", other);
    const std::string text = error_of<InputError>([&] { dedup(*io::posix_fs(), options_); });
    EXPECT_NE(text.find("one.jsonl] has "), std::string::npos) << text;
    EXPECT_NE(text.find("it was changed since"), std::string::npos) << text;
  }
}

TEST_F(DedupRestart, RefusesOtherSettings) {
  options_.output = dir_ / "refused";
  ASSERT_TRUE(stop_at_sync(options_, 6));
  options_.jaccard = {8, 10};
  const std::string text = error_of<CheckpointError>([&] { dedup(*io::posix_fs(), options_); });
  EXPECT_NE(text.find("jaccard_above"), std::string::npos) << text;
  options_.jaccard = {};
  options_.inputs.pop_back();
  const std::string fewer = error_of<CheckpointError>([&] { dedup(*io::posix_fs(), options_); });
  EXPECT_NE(fewer.find("inputs: it is of 2, asked are 1"), std::string::npos) << fewer;
  options_.inputs.push_back(dir_ / "one.jsonl");
  const std::string other = error_of<CheckpointError>([&] { dedup(*io::posix_fs(), options_); });
  EXPECT_NE(other.find("inputs[1] = "), std::string::npos) << other;
  options_.inputs.back() = dir_ / "two.jsonl";
  options_.threads = 3;
  options_.memory = std::size_t{32} << 20;
  EXPECT_TRUE(dedup(*io::posix_fs(), options_).is_complete) << "threads and memory are no settings";
  EXPECT_TRUE(files_of(options_.output) == want_);
  EXPECT_TRUE(dedup(*io::posix_fs(), options_).files.empty()) << "nothing to do";
  options_.seed = 2;
  EXPECT_NE(error_of<ConfigError>([&] { dedup(*io::posix_fs(), options_); }).find("has files"), std::string::npos);
}

// Started from within the first job, at each of its units.
TEST_F(DedupRestart, ASecondStartInTheSameFolderIsRefused) {
  options_.output = dir_ / "busy";
  DedupOptions second = options_;
  int starts = 0;
  const auto expect_refusal = [&](int rank, int count) {
    second.share = {.rank = rank, .count = count, .others = Share::Others::leave};
    const std::string text = error_of<IoError>([&] { dedup(*io::posix_fs(), second); });
    EXPECT_NE(text.find("the folder is in use by host "), std::string::npos) << text;
    EXPECT_NE(text.find(str("pid ", ::getpid())), std::string::npos) << text;
    ++starts;
  };
  options_.progress = [&](std::string_view, std::size_t, std::size_t) {
    expect_refusal(0, 1);
    expect_refusal(1, 2);  // of another number of shares
  };
  EXPECT_TRUE(dedup(*io::posix_fs(), options_).is_complete);
  EXPECT_GT(starts, 10);
  EXPECT_TRUE(files_of(options_.output) == want_);
  EXPECT_FALSE(std::filesystem::exists(options_.output / "work"));

  options_.output = second.output = dir_ / "shards";
  options_.share = {.rank = 0, .count = 2, .others = Share::Others::leave};
  bool was_beside = false;
  options_.progress = [&](std::string_view, std::size_t, std::size_t) {
    expect_refusal(0, 2);
    second.share.rank = 1;
    if (!was_beside) {
      EXPECT_NO_THROW(dedup(*io::posix_fs(), second)) << "another shard runs beside it";
    }
    was_beside = true;
  };
  dedup(*io::posix_fs(), options_);
  EXPECT_TRUE(was_beside);
  for (const auto& entry : std::filesystem::directory_iterator(options_.output / "work"))
    EXPECT_NE(entry.path().extension(), ".lock") << entry.path();
}

TEST_F(DedupRestart, GoesOnUnderAnotherNameOfTheSameFolder) {
  std::filesystem::create_directory(dir_ / "sub");
  for (const char* name : {"same/", "./same", "sub/../same"}) {
    options_.output = dir_ / "same/";  // not there yet
    ASSERT_TRUE(stop_at_sync(options_, 20));
    options_.output = dir_ / name;
    EXPECT_NO_THROW(dedup(*io::posix_fs(), options_)) << name;
    EXPECT_TRUE(files_of(options_.output) == want_) << name;
    std::filesystem::remove_all(dir_ / "same");
  }
}

TEST_F(DedupRestart, WorkMayLieElsewhere) {
  options_.work = dir_ / "elsewhere";
  options_.output = dir_ / "out";
  ASSERT_TRUE(stop_at_sync(options_, 20));
  dedup(*io::posix_fs(), options_);
  EXPECT_TRUE(files_of(options_.output) == want_);
  EXPECT_FALSE(std::filesystem::exists(options_.work));
}

}  // namespace
}  // namespace megalith::corpus
