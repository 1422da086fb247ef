#include "megalith/checkpoint/shard_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "megalith/base/error.h"
#include "megalith/checkpoint/verify.h"

#include "tests/checkpoint/fixture.h"
#include "tests/io/temp_dir.h"

namespace megalith::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SavedCheckpoint : public testing::Test {
 protected:
  const std::vector<Global> state_ = random_state(1);
  const std::shared_ptr<io::Fs> fs_ = io::posix_fs();
  const TempDir dir_;
  const io::Path folder_ = dir_ / save_checkpoint(*fs_, dir_.path(), 100, state_).name();
};

TEST_F(SavedCheckpoint, ReadsBackAndVerifies) {
  EXPECT_EQ(load_checkpoint(*fs_, folder_), state_);
  const Verification verification = verify(*fs_, folder_);
  EXPECT_TRUE(verification.problems.empty());
  EXPECT_EQ(static_cast<Index>(verification.bytes), verification.manifest.bytes());
  EXPECT_EQ(verification.manifest.run, run_state(100));

  CheckpointReader reader(*fs_, folder_);  // the digest of what is loaded is the manifest's
  StateDigest digest;
  for (Global global : load_checkpoint(*fs_, folder_)) digest.add_tensor(global.slice(), global.tensor());
  EXPECT_EQ(digest.value() + digest_of(reader.manifest().run), reader.manifest().digest);
}

// What one grid saved, another reads: every slice that it asks for equals the same slice of the full tensor.
TEST(Resharding, AnySlicingReadsWhatAnyOtherWrote) {
  const auto fs = io::posix_fs();
  std::mt19937_64 random(31);
  for (int round = 0; round < 40; ++round) {
    const TempDir dir;
    const std::vector<Global> state = random_state(random());
    const int ranks = 1 + static_cast<int>(random() % 5);
    const io::StepFolder saved = save_checkpoint(*fs, dir.path(), 3, shard_randomly(state, ranks, random));
    CheckpointReader reader(*fs, dir / saved.name());
    for (const Global& global : state) {
      for (const Box& box : random_grid(global.shape, 4, random)) {
        Part part(global, box);
        reader.read(part.slice, part.tensor());
        ASSERT_EQ(part.values, cut(global, box).values) << global.name << ", round " << round;
      }
    }
  }
}

TEST(Resharding, SeveralBlocksEachVerifiedOnce) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::mt19937_64 random(5);
  const Global big = random_global("w", DType::f32, {1500, 2000}, random);  // 12 MB: three blocks
  const io::StepFolder saved = save_checkpoint(*fs, dir.path(), 1, {{cut(big, {{}, big.shape})}});
  CheckpointReader reader(*fs, dir / saved.name());
  Part first(big, {{0, 0}, {10, 2000}});
  reader.read(first.slice, first.tensor());
  EXPECT_EQ(first.values, cut(big, {{0, 0}, {10, 2000}}).values);
  EXPECT_TRUE(reader.verify_plain_files());
  const std::uint64_t verified = reader.verified_bytes();
  EXPECT_EQ(static_cast<Index>(verified), reader.manifest().bytes());  // a slice's whole extent is verified
  Part second(big, {{1000, 7}, {400, 3}});
  reader.read(second.slice, second.tensor());
  EXPECT_EQ(second.values, cut(big, {{1000, 7}, {400, 3}}).values);
  EXPECT_EQ(reader.verified_bytes(), verified);
}

TEST_F(SavedCheckpoint, ConvertsNothing) {
  CheckpointReader reader(*fs_, folder_);
  std::vector<double> into(120);
  const std::string where = "[" + folder_.string() + "] tensor \"";
  EXPECT_EQ(error_of<CheckpointError>([&] {
              reader.read(TensorSlice::whole("embed.weight", {12, 10}), Tensor(into.data(), {12, 10}, DType::f64));
            }),
            where + "embed.weight\": is f32 [12, 10] in the checkpoint, the run wants f64 [12, 10]");
  EXPECT_EQ(error_of<CheckpointError>([&] {
              reader.read(TensorSlice::whole("embed.weight", {10, 12}), Tensor(into.data(), {10, 12}, DType::f32));
            }),
            where + "embed.weight\": is f32 [12, 10] in the checkpoint, the run wants f32 [10, 12]");
  EXPECT_EQ(error_of<CheckpointError>(
                [&] { reader.read(TensorSlice::whole("extra", {2}), Tensor(into.data(), {2}, DType::f32)); }),
            where + "extra\": is not in the checkpoint");
  EXPECT_THROW(reader.read(TensorSlice::whole("embed.weight", {12, 10}), Tensor(into.data(), {2}, DType::f32)),
               ShapeError);
}

TEST_F(SavedCheckpoint, RandomFlipsAreAlwaysFound) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    const io::Path file = folder_ / shard_file_name(round % 2);
    const std::string good = read_all(file);
    std::string bad = good;
    const std::size_t at = random() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    write_all(file, bad);
    ASSERT_THROW(load_checkpoint(*fs_, folder_), InputError) << file << ", byte " << at;
    if (round % 10 == 0) {
      ASSERT_FALSE(verify(*fs_, folder_).problems.empty()) << at;
    }
    write_all(file, good);
  }
  EXPECT_EQ(load_checkpoint(*fs_, folder_), state_);
}

TEST_F(SavedCheckpoint, DamageIsNamedByFileBytesAndTensor) {
  const io::Path file = folder_ / shard_file_name(0);
  std::string bytes = read_all(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_all(file, bytes);
  const std::string error = error_of<InputError>([&] { load_checkpoint(*fs_, folder_); });
  EXPECT_THAT(error, HasSubstr("[" + folder_.string() + "] file shard_00000.safetensors, bytes 0 to "));
  EXPECT_THAT(error, HasSubstr("at the save it was "));
  EXPECT_THAT(verify(*fs_, folder_).problems, ElementsAre(HasSubstr("file shard_00000.safetensors, bytes 0 to ")));
}

TEST(Damage, NamesTheTensorBeyondTheHeadersBlock) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::mt19937_64 random(5);
  const Global big = random_global("layers.0.up", DType::f32, {1500, 2000}, random);
  const io::Path folder = dir / save_checkpoint(*fs, dir.path(), 1, {{cut(big, {{}, big.shape})}}).name();
  std::string bytes = read_all(folder / shard_file_name(0));
  bytes[5000000] = static_cast<char>(bytes[5000000] ^ 16);
  write_all(folder / shard_file_name(0), bytes);
  CheckpointReader reader(*fs, folder);
  Part part(big, {{0, 0}, {1, 1}});
  const std::string error = error_of<InputError>([&] { reader.read(part.slice, part.tensor()); });
  EXPECT_THAT(error, HasSubstr("shard_00000.safetensors, bytes 4194304 to 8388608: checksum = "));
  EXPECT_THAT(error, HasSubstr(": damaged; they hold tensor \"layers.0.up\""));
  EXPECT_THAT(verify(*fs, folder).problems,
              ElementsAre(testing::AllOf(HasSubstr("bytes 4194304 to 8388608: checksum = "),
                                         HasSubstr(" (tensor layers.0.up)"))));
}

TEST_F(SavedCheckpoint, WrongFilesAreFound) {
  const io::Path shard = folder_ / shard_file_name(1);
  const std::string good = read_all(shard);
  const auto error = [&] { return error_of<InputError>([&] { load_checkpoint(*fs_, folder_); }); };
  const auto problems = [&] { return verify(*fs_, folder_).problems.size(); };
  for (std::size_t size = 0; size < good.size(); size += 512) {
    write_all(shard, good.substr(0, size));
    EXPECT_THAT(error(),
                HasSubstr("file shard_00001.safetensors: has " + std::to_string(size) + " bytes, the manifest says"));
    EXPECT_EQ(problems(), 1u);
  }
  write_all(shard, good + "x");
  EXPECT_THAT(error(), HasSubstr("bytes, the manifest says"));
  std::filesystem::remove(shard);
  EXPECT_THAT(error(), HasSubstr("file shard_00001.safetensors: is missing"));
  EXPECT_EQ(problems(), 1u);
  std::filesystem::create_directory(shard);
  EXPECT_THAT(error(), HasSubstr("file shard_00001.safetensors: is a folder"));
  std::filesystem::remove(shard);
  ASSERT_EQ(::mkfifo(shard.c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("file shard_00001.safetensors: has 0 bytes"));
  std::filesystem::remove(shard);
  write_all(shard, good);
  EXPECT_EQ(load_checkpoint(*fs_, folder_), state_);
}

TEST_F(SavedCheckpoint, ExchangedShardsAndManifestsAreFound) {
  const io::Path other = dir_ / save_checkpoint(*fs_, dir_.path(), 100, random_state(2)).name();
  ASSERT_EQ(other.filename(), "step_00000100.r2");
  const io::Path mine = folder_ / shard_file_name(0);
  std::filesystem::copy_file(other / shard_file_name(0), mine, std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of<InputError>([&] { load_checkpoint(*fs_, folder_); }), HasSubstr("at the save it was"));

  const io::Path later = dir_ / save_checkpoint(*fs_, dir_.path(), 200, state_).name();
  std::filesystem::copy_file(other / "MANIFEST", later / "MANIFEST", std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(error_of<InputError>([&] { load_checkpoint(*fs_, later); }),
              HasSubstr("step = 100: the folder is step_00000200; this manifest belongs to another one"));
  std::filesystem::remove(later / "MANIFEST");
  EXPECT_THAT(error_of<InputError>([&] { load_checkpoint(*fs_, later); }), HasSubstr("there is no such file"));
}

TEST_F(SavedCheckpoint, HoldsPlainFilesAndFindsTheirDamage) {
  EXPECT_EQ(read_all(folder_ / "vocab.json"), kVocabulary);
  EXPECT_TRUE(CheckpointReader(*fs_, folder_).verify_plain_files());
  write_all(folder_ / "vocab.json", "{\"b\": 0}\n");
  const auto what = HasSubstr("file vocab.json, bytes 0 to 9: checksum = ");
  EXPECT_THAT(verify(*fs_, folder_).problems, ElementsAre(what));
  CheckpointReader reader(*fs_, folder_);
  EXPECT_THAT(error_of<InputError>([&] { reader.verify_plain_files(); }), what);
}

TEST(PlainFiles, HaveNamesOfTheirOwn) {
  const TempDir dir;
  EXPECT_THAT(error_of<InternalError>([&] { write_plain_file(*io::posix_fs(), dir.path(), "notes.txt", "x"); }),
              HasSubstr("name = notes.txt: is none of a plain file"));
}

TEST_F(SavedCheckpoint, VerifyRecomputesTheDigest) {
  Manifest manifest = read_manifest(*fs_, folder_);
  manifest.digest.low ^= 1;
  write_all(folder_ / "MANIFEST", manifest_text(manifest));
  EXPECT_THAT(verify(*fs_, folder_).problems, ElementsAre(HasSubstr("state digest = ")));
}

TEST(WriteShard, SeveralPartsOfATensorAndNamesThatLookLikeThem) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::mt19937_64 random(6);
  const Global w = random_global("w", DType::f32, {6}, random), tricky = random_global("w#2", DType::f32, {2}, random);
  const io::StepFolder saved = save_checkpoint(
      *fs, dir.path(), 1, {{cut(w, {{0}, {2}}), cut(w, {{2}, {1}}), cut(tricky, {{0}, {2}}), cut(w, {{3}, {3}})}});
  CheckpointReader reader(*fs, dir / saved.name());
  for (const Global& global : {w, tricky}) {
    Part whole(global, {{}, global.shape});
    reader.read(whole.slice, whole.tensor());
    EXPECT_EQ(whole.values, global.values) << global.name;
  }
}

// Pieces that are read block by block give the file and the digest of those that lie in memory.
TEST(WriteShard, BlocksOfAnySizeGiveTheSameFile) {
  const auto fs = io::posix_fs();
  std::mt19937_64 random(7);
  const std::vector<Global> globals = {random_global("a", DType::f32, {7, 5}, random),
                                       random_global("b", DType::f64, {3, 2, 4}, random),
                                       random_global("c", DType::bf16, {11}, random)};
  std::vector<Part> parts;
  for (const Global& global : globals) parts.push_back(cut(global, {{}, global.shape}));
  std::vector<NamedPiece> pieces;
  std::vector<PieceInfo> infos;
  for (Part& part : parts) {
    pieces.push_back({part.slice, part.tensor()});
    infos.push_back({part.slice, part.tensor().dtype()});
  }
  const TempDir whole_dir;
  const ShardReport whole = write_shard(*fs, whole_dir.path(), shard_file_name(0), pieces);
  for (const Index block_bytes : {8, 24, 40, 56, 1 << 20}) {
    const TempDir dir;
    Index most = 0;
    const ShardReport report = write_shard(*fs, dir.path(), shard_file_name(0), infos, block_bytes,
                                           [&](std::size_t piece, Index first, Index count) {
                                             const Tensor& values = pieces[piece].values;
                                             most = std::max(most, count * size_of(values.dtype()));
                                             return values.reshaped({values.numel()}).rows(first, count);
                                           });
    EXPECT_EQ(report, whole) << block_bytes;
    EXPECT_LE(most, block_bytes);
  }
}

TEST(WriteShard, RankWithNothingToSave) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::mt19937_64 random(6);
  const Global w = random_global("w", DType::f32, {6}, random);
  const io::StepFolder saved = save_checkpoint(*fs, dir.path(), 1, {{}, {cut(w, {{0}, {6}})}, {}});
  EXPECT_TRUE(verify(*fs, dir / saved.name()).problems.empty());
}

TEST(WriteShard, RefusesWhatDoesNotFit) {
  const TempDir dir;
  const auto fs = io::posix_fs();
  std::vector<float> values(4);
  const Tensor four(values.data(), {4}, DType::f32);
  const auto write = [&](const TensorSlice& slice, const char* file) {
    write_shard(*fs, dir.path(), file, std::vector<NamedPiece>{{slice, four}});
  };
  EXPECT_THAT(error_of<ShapeError>([&] {
                write({"w", {8}, {5}, {4}}, "a.safetensors");
              }),
              HasSubstr("[a.safetensors] tensor w: a slice [4] of [8]: must lie inside"));
  EXPECT_THROW(write({"w", {8}, {0}, {3}}, "a.safetensors"), ShapeError);
  EXPECT_THROW(write({"w", {8}, {0}, {4}}, "a.bin"), InternalError);
}

}  // namespace
}  // namespace megalith::checkpoint
