#include "megalith/io/mapped_files.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/io/fs.h"

#include "tests/io/temp_dir.h"

namespace megalith::io {
namespace {

std::string file_at(const void* address) {
  const char* const file = mapped_file_at(address);
  return file == nullptr ? "none" : file;
}

TEST(MappedFiles, AnAddressNamesItsFileWhileThatIsMapped) {
  const TempDir dir;
  write_all(dir / "a", std::string(10000, 'a'));
  write_all(dir / "b", "b");
  const auto fs = posix_fs();
  MappedFile a = fs->map(dir / "a");
  const MappedFile b = fs->map(dir / "b"), b_again = b;
  const std::byte* const first = a.bytes().data();
  EXPECT_EQ(file_at(first), (dir / "a").string());
  EXPECT_EQ(file_at(first + 9999), (dir / "a").string());
  EXPECT_EQ(file_at(b_again.bytes().data()), (dir / "b").string());
  EXPECT_EQ(file_at(&dir), "none");
  a = {};
  EXPECT_EQ(file_at(first), "none");
  EXPECT_EQ(file_at(b.bytes().data()), (dir / "b").string());
}

TEST(MappedFiles, MoreThanCanBeNotedAreNotNamed) {
  const std::vector<std::byte> memory(NotedMapping::kMaxNoted + 1);
  std::vector<std::unique_ptr<NotedMapping>> all;
  for (const std::byte& byte : memory) all.push_back(std::make_unique<NotedMapping>(&byte, 1, "file"));
  EXPECT_EQ(file_at(&memory[1]), "file");
  EXPECT_EQ(file_at(&memory.back()), "none");
  all.erase(all.begin());
  const NotedMapping late(&memory.back(), 1, "late");
  EXPECT_EQ(file_at(&memory.back()), "late");
  EXPECT_EQ(file_at(&memory.front()), "none");
}

}  // namespace
}  // namespace megalith::io
