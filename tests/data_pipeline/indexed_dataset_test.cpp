#include "megalith/data/indexed_dataset.h"

#include <functional>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/fault_fs.h"

#include "tests/io/model_fs.h"
#include "tests/io/temp_dir.h"

namespace megalith::data {
namespace {

using Ids = std::vector<std::int32_t>;
using Options = IndexedDatasetBuilder::Options;

void build(io::Fs& fs, const io::Path& prefix, const std::vector<Ids>& documents, const Options& options) {
  IndexedDatasetBuilder builder(fs, prefix, options);
  for (const Ids& document : documents) {
    builder.add(document);
    builder.end_document();
  }
  builder.finish();
}

Ids all_tokens(const IndexedDataset& dataset) {
  Ids ids(static_cast<std::size_t>(dataset.num_tokens()));
  dataset.copy(0, ids);
  return ids;
}

/// `value` as little-endian bytes.
template <class T>
std::string le(T value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i);
  return bytes;
}

const std::string kMagic("MMIDIDX\0\0", 9);

/// An index written out field by field, as the format says.
struct Index1 {
  std::string magic = kMagic;
  std::uint64_t version = 1;
  int dtype = 8;
  std::vector<std::int32_t> lengths = {3, 1};
  std::vector<std::int64_t> pointers = {0, 6};
  std::vector<std::int64_t> documents = {0, 1, 2};
  std::uint64_t more_sequences = 0, more_documents = 0;  ///< claimed, but not there
  std::string rest{};

  std::string bytes() const {
    std::string out = magic + le(version) + static_cast<char>(dtype) + le(lengths.size() + more_sequences) +
                      le(documents.size() + more_documents);
    for (const auto length : lengths) out += le(length);
    for (const auto pointer : pointers) out += le(pointer);
    for (const auto document : documents) out += le(document);
    return out + rest;
  }
};

TEST(IndexedDataset, WritesMegatronsBytes) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  build(*fs, dir / "a", {{5, 258, 65499}, {7}}, {.vocab_size = 65500});
  // 65,500 ids no longer fit Megatron's rule for u16, so this is i32.
  EXPECT_EQ(read_all(dir / "a.bin"), le(5) + le(258) + le(65499) + le(7));
  Index1 index;
  index.dtype = 4;
  index.pointers = {0, 12};
  EXPECT_EQ(read_all(dir / "a.idx"), index.bytes());

  build(*fs, dir / "b", {{5, 258, 40000}, {7}}, {.vocab_size = 65499});
  EXPECT_EQ(read_all(dir / "b.bin"), std::string("\x05\x00\x02\x01\x40\x9C\x07\x00", 8));
  EXPECT_EQ(read_all(dir / "b.idx"), std::string("MMIDIDX\0\0"                       // magic
                                                 "\1\0\0\0\0\0\0\0"                  // version
                                                 "\10"                               // u16
                                                 "\2\0\0\0\0\0\0\0"                  // sequences
                                                 "\3\0\0\0\0\0\0\0"                  // boundaries of documents
                                                 "\3\0\0\0\1\0\0\0"                  // lengths
                                                 "\0\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0"  // pointers
                                                 "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
                                                 9 + 8 + 1 + 8 + 8 + 8 + 16 + 24));
}

TEST(IndexedDataset, ReadsEveryIntegerType) {
  const TempDir dir;
  const auto check = [&](int code, auto zero) {
    using T = decltype(zero);
    Index1 index;
    index.dtype = code;
    index.pointers = {0, 3 * sizeof(T)};
    write_all(dir / "t.bin", le(T{5}) + le(T{127}) + le(T{0}) + le(T{7}));
    write_all(dir / "t.idx", index.bytes());
    const IndexedDataset dataset(*io::posix_fs(), dir / "t");
    EXPECT_EQ(all_tokens(dataset), (Ids{5, 127, 0, 7})) << code;
    EXPECT_EQ(dataset.num_documents(), 2);
    EXPECT_EQ(dataset.num_sequences(), 2);
    EXPECT_EQ(dataset.sequence_length(0), 3);
    EXPECT_EQ(dataset.document_begin(1), 1);
    EXPECT_EQ(id_bytes(dataset.type()), sizeof(T));
    Ids middle(2);
    dataset.copy(2, middle);
    EXPECT_EQ(middle, (Ids{0, 7})) << "across documents";
  };
  check(1, std::uint8_t{0});
  check(2, std::int8_t{0});
  check(3, std::int16_t{0});
  check(4, std::int32_t{0});
  check(5, std::int64_t{0});
  check(8, std::uint16_t{0});
}

TEST(IndexedDataset, EmptyAndLong) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  build(*fs, dir / "none", {}, {.vocab_size = 10});
  const IndexedDataset none(*fs, dir / "none");
  EXPECT_EQ(none.num_documents(), 0);
  EXPECT_EQ(none.num_tokens(), 0);

  // A document that is too long for one sequence becomes several, and stays one document.
  build(*fs, dir / "long", {{1, 2, 3, 4, 5}, {6}, {7, 8}}, {.vocab_size = 10, .longest_sequence = 2});
  const IndexedDataset dataset(*fs, dir / "long");
  EXPECT_EQ(all_tokens(dataset), (Ids{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(dataset.num_documents(), 3);
  EXPECT_EQ(dataset.num_sequences(), 5);
  EXPECT_EQ(dataset.document_begin(1), 3);
  EXPECT_EQ(dataset.document_begin(2), 4);
  EXPECT_EQ(dataset.sequence_length(2), 1);

  // More than the write buffer holds.
  Ids many(3000000);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int32_t>(i % 50000);
  build(*fs, dir / "many", {many}, {.vocab_size = 50257});
  EXPECT_EQ(all_tokens(IndexedDataset(*fs, dir / "many")), many);
}

TEST(IndexedDataset, RefusesWhatDoesNotFit) {
  const TempDir dir;
  const std::string bin(8, '\1');
  const auto error = [&](const Index1& index, const std::string& tokens) {
    write_all(dir / "x.bin", tokens);
    write_all(dir / "x.idx", index.bytes());
    std::string text = error_of<InputError>([&] { IndexedDataset(*io::posix_fs(), dir / "x"); });
    for (std::size_t at; (at = text.find(dir.path().string() + "/")) != std::string::npos;)
      text.erase(at, dir.path().string().size() + 1);
    return text;
  };
  EXPECT_EQ(error({}, bin), "");
  EXPECT_EQ(
      error({.magic = std::string("TNTIDX\0\0\0", 9)}, bin),
      "[x.idx] offset 9, magic: must be MMIDIDX: this is not an index of Megatron-LM (very old ones are not read)");
  EXPECT_EQ(error({.version = 2}, bin), "[x.idx] offset 17, version: 2: must be 1");
  EXPECT_EQ(error({.dtype = 6}, bin),
            "[x.idx] offset 18, dtype: code 6 must be 1 (u8), 2 (i8), 3 (i16), 4 (i32), 5 (i64) or 8 (u16)");
  EXPECT_EQ(error({.lengths = {3, -1}}, bin),
            "[x.idx] offset 42, sequence length: sequence 1 has -1 ids: must not be negative");
  EXPECT_EQ(error({.pointers = {0, 4}}, bin),
            "[x.idx] offset 58, sequence pointer: sequence 1 begins at byte 4 of .bin: "
            "must be where the one before it ends, 6");
  EXPECT_EQ(error({.lengths = {3, 2}}, bin),
            "[x.idx] offset 42, sequence length: sequence 1 ends at byte 10: x.bin has only 8");
  EXPECT_EQ(error({}, bin + "xx"),
            "[x.bin] size = 10 bytes: the sequences of .idx end at 8; the two files are not of one build");
  EXPECT_EQ(error({.documents = {1, 1, 2}}, bin),
            "[x.idx] offset 66, document index: begins with 1: must begin with 0");
  EXPECT_EQ(error({.documents = {0, 3, 2}}, bin),
            "[x.idx] offset 74, document index: boundary 1 is 3: must be from 0 (the "
            "boundary before it) to the number of sequences, 2");
  EXPECT_EQ(error({.documents = {0, 1}}, bin),
            "[x.idx] offset 74, document index: ends with 1: must end with the number of sequences, 2");
  EXPECT_EQ(error({.documents = {}}, bin), "[x.idx] offset 58, document count: 0: must be at least 1, the boundary 0");
  // Sizes that would need terabytes are refused before anything is allocated.
  EXPECT_NE(error({.more_sequences = std::uint64_t{1} << 60}, bin).find("sequence count"), std::string::npos);
  EXPECT_NE(error({.more_documents = ~std::uint64_t{0} / 8}, bin).find("document count"), std::string::npos);
  EXPECT_NE(error({.rest = "x"}, bin).find("[x.idx]"), std::string::npos);
}

TEST(IndexedDataset, RefusesEveryTruncatedIndex) {
  const TempDir dir;
  const std::string whole = Index1().bytes();
  write_all(dir / "x.bin", std::string(8, '\1'));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_all(dir / "x.idx", whole.substr(0, size));
    EXPECT_THROW(IndexedDataset(*io::posix_fs(), dir / "x"), InputError) << size;
  }
}

TEST(IndexedDataset, RefusesIdsThatAreNone) {
  const TempDir dir;
  Index1 index;
  index.dtype = 5;
  index.pointers = {0, 24};
  write_all(dir / "x.bin", le(std::int64_t{1}) + le(std::int64_t{2}) + le(std::int64_t{1} << 31) + le(std::int64_t{1}));
  write_all(dir / "x.idx", index.bytes());
  const IndexedDataset dataset(*io::posix_fs(), dir / "x");
  Ids ids(3);
  EXPECT_EQ(error_of<InputError>([&] { dataset.copy(1, ids); }),
            str("[", (dir / "x.bin").string(), "] token 2: its id must be from 0 to 2^31 - 1"));
  EXPECT_EQ(error_of<ShapeError>([&] { dataset.copy(2, ids); }),
            str("[", (dir / "x.bin").string(), "] tokens 2 to 5: the file holds 4"));
  EXPECT_THROW(dataset.copy(-1, ids), ShapeError);
  EXPECT_THROW(dataset.sequence_length(2), ShapeError);
  EXPECT_THROW(dataset.document_begin(3), ShapeError);
}

TEST(IndexedDatasetBuilder, DoesNotReplaceUnasked) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  build(*fs, dir / "new/folder/a", {{1}}, {.vocab_size = 10});
  EXPECT_EQ(error_of<ConfigError>([&] { build(*fs, dir / "new/folder/a", {{2}}, {.vocab_size = 10}); }),
            str("output ", (dir / "new/folder/a.idx").string(), " exists: name another, or pass --overwrite"));
  build(*fs, dir / "new/folder/a", {{2, 3}}, {.vocab_size = 10, .existing = IndexedDatasetBuilder::Existing::replace});
  EXPECT_EQ(all_tokens(IndexedDataset(*fs, dir / "new/folder/a")), (Ids{2, 3}));
}

TEST(IndexedDatasetBuilder, RefusesIdsOutsideTheVocabulary) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  IndexedDatasetBuilder builder(*fs, dir / "a", {.vocab_size = 10});
  EXPECT_THROW(builder.add(Ids{10}), InternalError);
  EXPECT_THROW(builder.add(Ids{-1}), InternalError);
}

TEST(IndexedDatasetBuilder, AnAbandonedBuildLeavesNothing) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  {
    IndexedDatasetBuilder builder(*fs, dir / "a", {.vocab_size = 10});
    builder.add(Ids{1, 2, 3});
    EXPECT_EQ(fs->list(dir.path()).size(), 1u);
  }
  EXPECT_EQ(fs->list(dir.path()), std::vector<std::string>{});
}

const std::vector<Ids> kOld = {{1, 2, 3}, {4}};
const std::vector<Ids> kNew = {{5, 6}, {7, 8}};  // as many bytes: a mixed pair would not show by its sizes

/// What opening the prefix gives: "nothing", or the tokens.
std::string state_of(const io::Path& prefix, io::Fs& fs = *io::posix_fs()) {
  if (!fs.exists(idx_path(prefix))) return "nothing";
  const IndexedDataset dataset(fs, prefix);
  std::string text = str(dataset.num_documents(), " documents:");
  for (const std::int32_t id : all_tokens(dataset)) text += str(" ", id);
  return text + str(", ", dataset.sequence_length(0), " in the first");
}

constexpr std::string_view kOldState = "2 documents: 1 2 3 4, 3 in the first";
constexpr std::string_view kNewState = "2 documents: 5 6 7 8, 2 in the first";

bool any_staged(const io::Path& folder) {
  for (const std::string& name : io::posix_fs()->list(folder))
    if (name.find(".tmp-") != std::string::npos) return true;
  return false;
}

class InterruptedBuild : public testing::TestWithParam<bool> {
 protected:
  bool replaces() const { return GetParam(); }
  void prepare(const TempDir& dir) const {
    if (replaces()) build(*io::posix_fs(), dir / "a", kOld, {.vocab_size = 10});
  }
  void build_with(const std::string& fault, const TempDir& dir) const {
    io::FaultFs fs(io::posix_fs(), io::parse_faults(fault), 0);
    build(fs, dir / "a", kNew, {.vocab_size = 10, .existing = IndexedDatasetBuilder::Existing::replace});
  }
  void expect_whole_or_nothing(const TempDir& dir, const std::string& fault) const {
    const std::string state = state_of(dir / "a");
    EXPECT_TRUE(state == "nothing" || state == kNewState || (replaces() && state == kOldState))
        << fault << ": " << state;
  }
};

TEST_P(InterruptedBuild, KilledAtEveryOperation) {
  bool finished = false;
  int n = 0;
  while (!finished) {
    ++n;
    const TempDir dir;
    prepare(dir);
    const std::string fault = str("*:*:", n, n % 2 == 0 ? ":kill" : ":torn");
    const ::pid_t child = ::fork();
    if (child == 0) {
      build_with(fault, dir);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    finished = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    ASSERT_TRUE(finished || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) << fault;
    expect_whole_or_nothing(dir, fault);
    // A later build is not disturbed by what is left.
    if (!finished) {
      build_with("", dir);
      EXPECT_EQ(state_of(dir / "a"), kNewState) << fault;
    }
  }
  EXPECT_GT(n, 15) << "operations of one build";
}

TEST_P(InterruptedBuild, FailedAtEveryOperation) {
  for (int n = 1;; ++n) {
    const TempDir dir;
    prepare(dir);
    const std::string fault = str("*:*:", n, n % 2 == 0 ? ":ENOSPC" : ":short");
    try {
      build_with(fault, dir);
      EXPECT_GT(n, 15) << "operations of one build";
      break;
    } catch (const IoError&) {
    }
    expect_whole_or_nothing(dir, fault);
    EXPECT_FALSE(any_staged(dir.path())) << fault;
  }
}

/// Every state that a power cut may leave, at every change of a build. Faults make known-bad variants.
struct Cuts {
  Index states = 0, violations = 0;
  std::string first_violation;
};
Cuts cut_everywhere(bool replaces, const std::string& faults) {
  const auto model = std::make_shared<io::ModelFs>();
  model->make_dir("/data");
  model->sync_dir("/");
  if (replaces) build(*model, "/data/a", kOld, {.vocab_size = 10});
  Cuts cuts;
  bool acknowledged = false;
  const auto cut = [&] {
    cuts.states += model->for_each_crash_state([&](io::ModelFs& left) {
      std::string state;
      try {
        state = state_of("/data/a", left);
      } catch (const Error& error) {
        state = error.what();
      }
      const bool legal = acknowledged ? state == kNewState
                                      : state == "nothing" || state == kNewState || (replaces && state == kOldState);
      if (!legal && cuts.violations++ == 0) cuts.first_violation = state;
    });
  };
  model->on_change(cut);
  io::FaultFs fs(model, io::parse_faults(faults), 0);
  build(fs, "/data/a", kNew, {.vocab_size = 10, .existing = IndexedDatasetBuilder::Existing::replace});
  acknowledged = true;
  cut();
  return cuts;
}

TEST_P(InterruptedBuild, PowerCutAtEveryChange) {
  const Cuts cuts = cut_everywhere(replaces(), "");
  EXPECT_EQ(cuts.violations, 0) << cuts.first_violation;
  EXPECT_GT(cuts.states, 20);
  EXPECT_GT(cut_everywhere(replaces(), "*:sync:*:skip").violations, 0) << "the control without syncs of files";
  EXPECT_GT(cut_everywhere(replaces(), "*:sync_dir:*:skip").violations, 0) << "the control without syncs of the folder";
}

INSTANTIATE_TEST_SUITE_P(Build, InterruptedBuild, testing::Bool(),
                         [](const auto& suite) { return suite.param ? "OverAnOldOne" : "Fresh"; });

}  // namespace
}  // namespace megalith::data
