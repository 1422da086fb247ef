#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <span>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/io/fault_fs.h"
#include "megalith/io/retrying_fs.h"
#include "megalith/ops/masters.h"
#include "megalith/train/saver.h"

#include "tests/io/temp_dir.h"
#include "tests/train/resumed_run.h"
#include "tests/train/saved_run.h"

// Saved on any grid, resumed on any other: the same state to the bit, the same losses by the grid promise.
namespace megalith {
namespace {

using support::Grid;

constexpr Index kSavedAt = 2, kSteps = 4;

using support::Trained;

Trained run(const Grid& grid, const std::string& precision, const io::Path& folder, Index begin, Index end) {
  return support::train_and_save(support::small_plan(grid, precision, kSteps), folder, begin, end);
}

class ResumeEverywhere : public ::testing::TestWithParam<Grid> {};

TEST_P(ResumeEverywhere, EveryGridGoesOnAsIfNothingHadHappened) {
  for (const auto& [precision, tolerance] : {std::pair{"fp64", 1e-12}, {"fp32", 1e-5}}) {
    const TempDir dir;
    support::RunRecord whole;
    support::train_on({}, precision, whole, kSteps);
    const Trained saved = run(GetParam(), precision, dir.path(), 0, kSavedAt);
    for (const Grid& other : support::all_grids()) {
      const Trained resumed = run(other, precision, dir.path(), kSavedAt, kSteps);
      EXPECT_EQ(resumed.digest.hex(), saved.digest.hex()) << other.name();
      const std::vector<double> want(whole.losses.begin() + kSavedAt, whole.losses.end());
      EXPECT_LT(support::relative_error(resumed.losses, want), tolerance)
          << precision << ", resumed on " << other.name();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ResumeEverywhere, ::testing::ValuesIn(support::all_grids()),
                         [](const auto& test) { return test.param.name(); });

TEST(Resume, ADistributedOptimizersCheckpointGoesToAnyGridAndComesFromAny) {
  const Grid sharded{.tp = 2, .pp = 2, .dp = 2, .sharding = Sharding::optimizer};
  for (const char* precision : {"fp64", "bf16"}) {
    for (const Grid& other :
         {Grid{}, Grid{.tp = 2, .pp = 2, .chunks = 2}, Grid{.dp = 4, .sharding = Sharding::optimizer}}) {
      for (const auto& [from, to] : {std::pair(sharded, other), std::pair(other, sharded)}) {
        const TempDir dir;
        const Trained saved = run(from, precision, dir.path(), 0, kSavedAt);
        const Trained resumed = run(to, precision, dir.path(), kSavedAt, kSteps);
        EXPECT_EQ(resumed.digest.hex(), saved.digest.hex()) << from.name() << " to " << to.name();
        EXPECT_EQ(resumed.losses.size(), static_cast<std::size_t>(kSteps - kSavedAt));
      }
    }
  }
}

// In bf16 and fp16 the first loss after a resume is that of the 16-bit copy of the values, which no checkpoint holds.
TEST(Resume, OnTheSameGridTheBitsAreThoseOfAnUninterruptedRun) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}, Grid{.pp = 2, .dp = 2, .sharding = Sharding::optimizer}}) {
    for (const char* precision : {"fp64", "fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(grid.name() + " " + precision);
      const TempDir dir;
      support::RunRecord whole;
      support::train_on(grid, precision, whole, kSteps);
      run(grid, precision, dir.path(), 0, kSavedAt);
      const Trained resumed = run(grid, precision, dir.path(), kSavedAt, kSteps);
      EXPECT_EQ(resumed.losses, (std::vector<double>(whole.losses.begin() + kSavedAt, whole.losses.end())));
    }
  }
}

/// Changes one value of a checkpoint, and the checksums with it, so that nothing but the state digest tells.
void change_value(const io::Path& folder) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  checkpoint::Manifest manifest = checkpoint::read_manifest(*fs, folder);
  checkpoint::FileRecord& file = manifest.files.front();
  std::string bytes = read_all(folder / file.name);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_all(folder / file.name, bytes);
  io::BlockChecksums checksums;
  checksums.update(std::as_bytes(std::span(bytes)));
  file.checksums = checksums.finish();
  write_all(folder / io::kManifestName, checkpoint::manifest_text(manifest));
}

TEST(Resume, AStateOfAnotherDigestIsPassedOverOrRefused) {
  for (const Grid& grid : {Grid{}, Grid{.tp = 2, .pp = 2}, Grid{.dp = 2, .sharding = Sharding::optimizer}}) {
    SCOPED_TRACE(grid.name());
    const TempDir dir;
    const io::Path older = dir / "step_00000001", newer = dir / "step_00000002";
    support::RunRecord whole;
    support::train_on(grid, "bf16", whole, kSteps);
    for (const Index step : {1, 2}) run(grid, "bf16", dir.path(), 0, step);
    const auto resume = [&](checkpoint::OnCorrupt on_corrupt) {
      config::RunPlan plan = support::small_plan(grid, "bf16", kSteps);
      plan.checkpoint.on_corrupt = on_corrupt;
      std::vector<std::string> warnings;
      comm::run_ranks(grid.ranks(), [&](comm::World& world) {
        const std::shared_ptr<io::Fs> fs = io::posix_fs();
        train::Engine engine(world, plan);
        engine.allocate();
        const train::Resumed resumed = train::Saver(engine, plan, {1, 2}, *fs, dir.path()).resume().value();
        if (world.rank() == 0) warnings = resumed.warnings;
      });
      return warnings;
    };
    const auto refusal = [&](checkpoint::OnCorrupt on_corrupt) {
      try {
        resume(on_corrupt);
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.code(), ExitCode::checkpoint_refused);
        return std::string(error.what());
      }
      return std::string("nothing was refused");
    };
    const std::string differs = ": the state digest in memory is ";

    EXPECT_TRUE(resume(checkpoint::OnCorrupt::fail).empty());
    change_value(newer);
    const std::vector<std::string> warnings = resume(checkpoint::OnCorrupt::previous);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0].find(str("checkpoint step_00000002 cannot be used and was passed over: [resume] ",
                                   newer.string(), differs)),
              0u)
        << warnings[0];
    EXPECT_EQ(run(grid, "bf16", dir.path(), 1, kSteps).losses,
              (std::vector<double>(whole.losses.begin() + 1, whole.losses.end())))
        << "nothing of the state that was passed over is left";
    EXPECT_EQ(refusal(checkpoint::OnCorrupt::fail).find(str("[resume] ", newer.string(), differs)), 0u);

    change_value(older);
    const std::string none = refusal(checkpoint::OnCorrupt::previous);
    EXPECT_NE(none.find(str(newer.string(), differs)), std::string::npos) << none;
    EXPECT_NE(none.find(str(older.string(), differs)), std::string::npos) << none;
  }
}

TEST(Engine, ValuesThatAreWrittenLaterBeginAsZeros) {
  const config::RunPlan plan = support::small_plan({}, "bf16", kSteps);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine drawn(world, plan), zeros(world, plan);
    drawn.allocate();
    zeros.allocate(train::InitialValues::written_later);
    const auto sum = [](train::Engine& engine) {
      double total = 0;
      for (const Param& param : engine.stage().params().dense().params()) {
        Buffer memory;
        for (const float value : ops::readable(engine.exec(), param.masters, memory).span<float>())
          total += std::abs(value);
      }
      return total;
    };
    EXPECT_GT(sum(drawn), 0);
    EXPECT_EQ(sum(zeros), 0);
  });
}

// Of any form in memory: the same files, and old ones are read.
TEST(Saver, CheckpointsHoldMastersInF32) {
  const config::RunPlan plan = support::small_plan({.dp = 2, .sharding = Sharding::optimizer}, "bf16", kSteps);
  const TempDir dir;
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  std::atomic<bool> has_more_bits = false;
  comm::run_ranks(2, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    engine.step(support::HashedBatches(plan.model.vocab_size), {}, train::Stop::no);
    train::Saver(engine, plan, {1, 2}, *fs, dir.path()).save({1, plan.train.global_batch});
    checkpoint::CheckpointReader reader(*fs, dir / "step_00000001");
    Buffer memory;
    for (const train::StatePiece& piece :
         train::updated_pieces(engine.stage().params(), engine.optimizers(), train::StateTensors::values)) {
      ASSERT_EQ(reader.manifest().find(piece.slice.name)->dtype, DType::f32) << piece.slice.name;
      std::vector<float> saved(static_cast<std::size_t>(piece.values.numel()));
      reader.read(piece.slice, Tensor(saved.data(), piece.slice.local, DType::f32));
      const std::span<const float> held = ops::readable(engine.exec(), piece.values, memory).span<float>();
      EXPECT_TRUE(std::ranges::equal(saved, held.first(saved.size()))) << piece.slice.name;
      const bool is_exact =
          std::ranges::all_of(saved, [](float value) { return value == static_cast<float>(bfloat16(value)); });
      if (!is_exact) has_more_bits = true;
    }
  });
  EXPECT_TRUE(has_more_bits) << "than copies have";
}

/// A run that saved steps 2 and 4, resumed.
class ResumeOfTwo : public ::testing::Test {
 protected:
  ResumeOfTwo() {
    for (const Index begin : {Index{0}, kSavedAt}) {
      support::SavedRun ignored;
      comm::run_ranks(grid_.ranks(), [&](comm::World& world) {
        support::train_saved(world, begin, begin + kSavedAt, plan_, dir_.path(), ignored);
      });
    }
  }
  /// Resumes on all ranks; `faults` are those of rank 1.
  std::optional<train::Resumed> resume(const std::string& faults = "") {
    std::optional<train::Resumed> resumed;
    comm::run_ranks(grid_.ranks(), [&](comm::World& world) {
      const auto fs =
          io::retrying_fs(std::make_shared<io::FaultFs>(io::posix_fs(), io::parse_faults(faults), world.rank()));
      train::Engine engine(world, plan_);
      engine.allocate();
      const auto found = train::Saver(engine, plan_, {1, 2}, *fs, dir_.path()).resume();
      if (world.rank() == 0) resumed = found;
    });
    return resumed;
  }
  Grid grid_{.tp = 2};
  config::RunPlan plan_ = support::small_plan(grid_, "fp32", 2 * kSavedAt);
  TempDir dir_;
};

TEST_F(ResumeOfTwo, AFileThatCannotBeReadIsTriedAgainAndNeverTakenForDamage) {
  const std::optional<train::Resumed> late = resume("1:map:2:ESTALE");
  ASSERT_TRUE(late);
  EXPECT_EQ(late->progress.step, 2 * kSavedAt);
  EXPECT_EQ(late->warnings.size(), 0u);
  const std::string text = error_of<IoError>([&] { resume("1:map:2+:EMFILE"); });
  EXPECT_NE(text.find("too many open files (injected)"), std::string::npos) << text;
}

TEST(Resume, AnotherModelIsRefusedWithTheKeysThatDiffer) {
  const TempDir dir;
  run({}, "fp64", dir.path(), 0, kSavedAt);
  config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  plan.model.num_heads = 2;
  plan.train.seed = 5;
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    try {
      train::Saver(engine, plan, {1, 3}, *fs, dir.path()).resume();
      FAIL() << "nothing was thrown";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint_refused);
      const std::string text = error.what();
      EXPECT_NE(text.find("model.num_heads = 2: the checkpoint was trained with 4"), std::string::npos) << text;
      EXPECT_NE(text.find("train.seed = 5"), std::string::npos) << text;
      EXPECT_NE(text.find("data.train"), std::string::npos) << text;
    }
  });
}

// A manifest's config_hash stays what earlier versions wrote.
TEST(Resume, TheHashOfARunDependsOnKeysThatMustMatchOnly) {
  const auto hash = [](auto&& change) {
    config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
    change(plan);
    return train::config_hash(plan, {1, 2});
  };
  const std::string same = hash([](config::RunPlan&) {});
  EXPECT_EQ(same, "c133fc1fc96ae578");
  EXPECT_EQ(hash([](config::RunPlan& plan) { plan.optimizer.lr = plan.model.dropout = 0.5; }), same);
  EXPECT_NE(hash([](config::RunPlan& plan) { plan.train.seed = 5; }), same);
  EXPECT_NE(hash([](config::RunPlan& plan) { plan.model.num_heads = 2; }), same);
}

TEST(Resume, SettingsThatChangeResultsAreWarnedAbout) {
  const TempDir dir;
  run({}, "fp64", dir.path(), 0, kSavedAt);
  config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  plan.optimizer.lr = 1e-4;
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    const std::optional<train::Resumed> resumed = train::Saver(engine, plan, {1, 2}, *fs, dir.path()).resume();
    ASSERT_TRUE(resumed.has_value());
    ASSERT_EQ(resumed->warnings.size(), 1u);
    EXPECT_NE(resumed->warnings[0].find("optimizer.lr"), std::string::npos);
  });
}

// The vocabulary's files are the same, and so are the ids of the corpus.
TEST(Resume, AnotherUnicodeVersionIsWarnedAboutAndOtherIdsAreRefused) {
  const TempDir dir;
  const config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    const auto saver = [&](std::uint64_t corpus, const char* unicode) {
      return train::Saver(engine, plan, {.tokenizer = 1, .corpus = corpus, .unicode = unicode}, *fs, dir.path());
    };
    const auto warnings = [&](const char* unicode) { return saver(2, unicode).resume().value().warnings; };
    saver(2, "14.0.0").save({});
    EXPECT_TRUE(warnings("14.0.0").empty());
    EXPECT_TRUE(warnings("").empty());
    ASSERT_EQ(warnings("15.1.0").size(), 1u);
    EXPECT_EQ(
        warnings("15.1.0")[0],
        "data.tokenizer: PCRE2 has the characters of Unicode 15.1.0 here, the checkpoint was trained with those of "
        "14.0.0; text with a character that is new in one of them may get other ids");
    EXPECT_NE(error_of<CheckpointError>([&] { saver(3, "15.1.0").resume(); }).find("data.train: its tokens differ"),
              std::string::npos);
    saver(2, "").save({.step = 1});
    EXPECT_TRUE(warnings("15.1.0").empty()) << "an older checkpoint has no version";
  });
}

TEST(Resume, AnotherChoiceOfGemmAlgorithmsIsWarnedAbout) {
  const TempDir dir;
  const config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  config::RunPlan timed = plan, heuristic = plan;  // a GPU's plans: only the Saver sees them
  timed.device = heuristic.device = Device::cuda;
  heuristic.train.gemm = ops::GemmChoice::heuristic;
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver(engine, timed, {1, 2}, *fs, dir.path()).save({});
    const auto warnings = [&](const config::RunPlan& now) {
      return train::Saver(engine, now, {1, 2}, *fs, dir.path()).resume().value().warnings;
    };
    EXPECT_TRUE(warnings(timed).empty());
    ASSERT_EQ(warnings(heuristic).size(), 1u);
    EXPECT_NE(warnings(heuristic)[0].find("train.gemm = heuristic: the checkpoint was trained with timed"),
              std::string::npos);
  });
}

TEST(Resume, AnotherCarrierOfSumsIsWarnedAboutWhereThereIsAChoice) {
  const config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    const auto warnings = [&](Device device, int ranks) {  // of such a plan: only the Saver sees it
      const TempDir folder;
      config::RunPlan now = plan;
      now.device = device;
      now.grid.world_size = ranks;
      train::Saver(engine, now, {1, 2}, *fs, folder.path()).save({});
      now.transfers = comm::Transport::kernels;
      return train::Saver(engine, now, {1, 2}, *fs, folder.path()).resume().value().warnings;
    };
    EXPECT_TRUE(warnings(Device::cpu, 2).empty());
    EXPECT_TRUE(warnings(Device::cuda, 1).empty());
    ASSERT_EQ(warnings(Device::cuda, 2).size(), 1u);
    EXPECT_EQ(warnings(Device::cuda, 2)[0],
              "parallel.transfers = kernels: the checkpoint was trained with copy_engines; results differ from an "
              "uninterrupted run");
  });
}

TEST(Resume, AnotherLossScalingIsWarnedAbout) {
  const TempDir dir;
  config::RunPlan plan = support::small_plan({}, "fp16", kSteps);
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver(engine, plan, {1, 2}, *fs, dir.path()).save({});
    plan.train.scaling = {.initial = 1024, .smallest = 2, .growth_interval = 7};
    EXPECT_EQ(
        train::Saver(engine, plan, {1, 2}, *fs, dir.path()).resume().value().warnings,
        (std::vector<std::string>{
            "train.loss_scale = 1024: the checkpoint was trained with 65536; the scale that the checkpoint has goes on",
            "train.loss_scale_min = 2: the checkpoint was trained with 1; results differ from an uninterrupted run",
            "train.loss_scale_interval = 7: the checkpoint was trained with 1000; results differ from an "
            "uninterrupted run"}));
    EXPECT_EQ(engine.optimizer_state().loss_scale, 65536);
  });
}

TEST(Resume, TheCpuKeepsNoGemmTable) {
  const TempDir dir;
  const config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  comm::run_ranks(1, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    EXPECT_TRUE(engine.choose_gemms().table.empty());
    train::Saver saver(engine, plan, {1, 2}, *fs, dir.path());
    saver.save({});
    EXPECT_TRUE(saver.resume().value().gemm_table.empty());
    EXPECT_EQ(read_all(dir / "step_00000000" / "MANIFEST").find("gemm"), std::string::npos);
  });
}

TEST(Resume, AnImportedModelIsRefusedAndNamesTrainInit) {
  const TempDir dir;
  const config::RunPlan plan = support::small_plan({}, "fp64", kSteps);
  comm::run_ranks(1, [&](comm::World& world) {
    train::Engine engine(world, plan);
    engine.allocate();
    train::Saver(engine, plan, {1, 0}, *io::posix_fs(), dir.path()).save({});
    try {
      train::Saver(engine, plan, {1, 2}, *io::posix_fs(), dir.path()).resume();
      FAIL() << "nothing was thrown";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.code(), ExitCode::checkpoint_refused);
      EXPECT_NE(std::string(error.what()).find("holds an imported model"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("train.init"), std::string::npos) << error.what();
    }
  });
}

TEST(Resume, NothingToResumeFromIsSaidSo) {
  const TempDir dir;
  const config::RunPlan plan = support::small_plan({.tp = 2}, "fp64", kSteps);
  comm::run_ranks(2, [&](comm::World& world) {
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    train::Engine engine(world, plan);
    engine.allocate();
    EXPECT_FALSE(train::Saver(engine, plan, {1, 2}, *fs, dir.path()).resume().has_value());
  });
}

}  // namespace
}  // namespace megalith
