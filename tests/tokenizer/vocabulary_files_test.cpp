#include "megalith/tokenizer/vocabulary_files.h"

#include <gtest/gtest.h>

#include "megalith/base/error.h"

#include "tests/io/temp_dir.h"
#include "tests/tokenizer/tokenizers.h"

namespace megalith::tokenizer {
namespace {

std::vector<std::string> names(const VocabularyFiles& files) {
  std::vector<std::string> all;
  for (const VocabularyFile& file : *files) all.push_back(file.name);
  return all;
}

TEST(VocabularyFiles, AloneGiveTheSameTokenizer) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const VocabularyFiles files = read_vocabulary_files(*fs, "gpt2", gpt2_dir());
  EXPECT_EQ(names(files), (std::vector<std::string>{"vocab.json", "merges.txt"}));
  const TempDir dir;
  EXPECT_FALSE(has_vocabulary(*fs, dir.path()));
  for (const VocabularyFile& file : *files) io::write_file(*fs, dir / file.name, file.text);
  EXPECT_TRUE(has_vocabulary(*fs, dir.path()));
  EXPECT_EQ(make_tokenizer("gpt2", dir.path(), *fs)->content_hash(), gpt2()->content_hash());
}

TEST(VocabularyFiles, AreATokenizerJsonWhereThatIsRead) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const TempDir dir;
  io::write_file(*fs, dir / "tokenizer.json", "{}");
  EXPECT_EQ(names(read_vocabulary_files(*fs, "gpt2", dir.path())), std::vector<std::string>{"tokenizer.json"});
  io::write_file(*fs, dir / "vocab.json", "{}");
  EXPECT_EQ(names(read_vocabulary_files(*fs, "gpt2", dir.path())), std::vector<std::string>{"tokenizer.json"})
      << "it states how text is cut, the others do not";
  const TempDir half;
  io::write_file(*fs, half / "vocab.json", "{}");
  EXPECT_THROW(read_vocabulary_files(*fs, "gpt2", half.path()), InputError) << "merges.txt is missing";
  EXPECT_TRUE(names(read_vocabulary_files(*fs, "byte", dir.path())).empty());
}

}  // namespace
}  // namespace megalith::tokenizer
