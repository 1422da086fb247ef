#include "tests/io/model_fs.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

/// Every file with its contents, folders with a slash: one line of text.
std::string picture(ModelFs& fs, const Path& folder = "/") {
  std::string text;
  for (const std::string& name : fs.list(folder)) {
    const Path path = folder / name;
    text += fs.is_dir(path) ? str(name, "/(", picture(fs, path), ")") : str(name, "=", fs.map(path).text(), " ");
  }
  return text;
}

std::set<std::string> left_by_a_cut(const ModelFs& fs) {
  std::set<std::string> states;
  fs.for_each_crash_state([&](ModelFs& left) {
    std::string text = picture(left);
    std::replace(text.begin(), text.end(), '\0', '0');
    states.insert(text);
  });
  return states;
}

void put(ModelFs& fs, const Path& path, std::string_view text) {
  const auto file = fs.create(path);
  file->write(text);
  file->sync();
}

TEST(ModelFs, IsAFileSystem) {
  ModelFs fs;
  fs.make_dir("/a/b");
  put(fs, "/a/b/x", "1");
  EXPECT_THROW(fs.create("/a/b/x"), IoError);
  EXPECT_THROW(fs.create("/nowhere/x"), IoError);
  fs.append("/a/b/x")->write(std::string_view("2"));
  EXPECT_EQ(fs.map("/a/b/x").text(), "12");
  fs.rename("/a/b/x", "/a/b/y");
  EXPECT_THAT(fs.list("/a/b"), ElementsAre("y"));
  EXPECT_THROW(fs.map("/a/b/x"), InputError);
  EXPECT_THROW(fs.remove_dir("/a/b"), IoError);
  fs.unlink("/a/b/y");
  fs.remove_dir("/a/b");
  EXPECT_TRUE(fs.is_dir("/a"));
  EXPECT_FALSE(fs.exists("/a/b"));
}

TEST(ModelFs, AFilesTailMayBeMissingHalfThereOrZero) {
  ModelFs fs;
  put(fs, "/x", "ab");
  fs.sync_dir("/");
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("x=ab "));
  fs.append("/x")->write(std::string_view("cdef"));
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("x=ab ", "x=abcd ", "x=abcdef ", "x=ab0000 ", "x=abcd00 "));
}

TEST(ModelFs, ANameIsDurableWhenItsFolderIs) {
  ModelFs fs;
  put(fs, "/x", "1");
  put(fs, "/y", "2");
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("", "x=1 ", "y=2 ", "x=1 y=2 "));
  fs.sync_dir("/");
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("x=1 y=2 "));
  fs.make_dir("/d");
  put(fs, "/d/z", "3");
  fs.sync_dir("/d");  // durable inside a folder that is not
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("x=1 y=2 ", "d/(z=3 )x=1 y=2 "));
}

TEST(ModelFs, ARenameHappensWholeAndAfterItsFile) {
  ModelFs fs;
  put(fs, "/old", "1");
  fs.sync_dir("/");
  put(fs, "/new", "2");
  fs.rename("/new", "/old");
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("old=1 ", "new=2 old=1 ", "old=2 "));
}

TEST(ModelFs, TheWellKnownMistakeShows) {  // renamed over the old file without a sync: an empty file may be left
  ModelFs fs;
  put(fs, "/config", "good");
  fs.sync_dir("/");
  fs.create("/tmp")->write(std::string_view("better"));
  fs.rename("/tmp", "/config");
  EXPECT_TRUE(left_by_a_cut(fs).contains("config= "));
}

TEST(ModelFs, PublishFileIsWholeAtEveryCut) {
  ModelFs fs;
  put(fs, "/x", "old");
  fs.sync_dir("/");
  Index states = 0;
  fs.on_change([&] {
    states += fs.for_each_crash_state([](ModelFs& left) {
      const std::string text(left.map("/x").text());
      EXPECT_TRUE(text == "old" || text == "new") << text;
    });
  });
  publish_file(fs, "/x", "new");
  EXPECT_GT(states, 8);
  fs.on_change(nullptr);
  EXPECT_THAT(left_by_a_cut(fs), UnorderedElementsAre("x=new "));
}

TEST(ModelFs, CountsItsStates) {
  ModelFs fs;
  for (const char* name : {"/a", "/b", "/c", "/d"}) put(fs, name, name);
  EXPECT_EQ(fs.for_each_crash_state([](ModelFs&) {}), 16);
  EXPECT_THROW(fs.for_each_crash_state([](ModelFs&) {}, 15), InternalError);
}

}  // namespace
}  // namespace megalith::io
