// Power cuts: every state that a cut may leave, at every operation of saves, deletions and clean-ups, on the model of a
// file system that promises no more than POSIX. Known-bad variants of the protocol must be caught.
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/io/fault_fs.h"

#include "tests/checkpoint/fixture.h"
#include "tests/io/model_fs.h"

namespace megalith::checkpoint {
namespace {

using ::testing::IsEmpty;
using Job = std::function<void(io::Fs&, const io::Path&)>;
/// The step that a restart would load, and what it finds there.
struct Found {
  Index step = 0;
  std::vector<Global> state;
};
using Loader = std::function<Found(io::Fs&, const io::Path&)>;

const io::Path kRoot = "/run/checkpoints";

std::vector<Global> state_at(Index step) { return random_state(static_cast<std::uint64_t>(1000 + step)); }

void save_step_3(io::Fs& fs, const io::Path& root) { save_checkpoint(fs, root, 3, state_at(3)); }

void save_step_3_and_prune(io::Fs& fs, const io::Path& root) {
  save_step_3(fs, root);
  std::vector<io::StepFolder> verified;
  prune(fs, root, 2, verified);
}

/// As a resumed run does it: what was published and cannot be used is an error here, since no cut may leave it.
Found load_newest(io::Fs& fs, const io::Path& root) {
  const Choice choice = find_newest_valid(fs, root, OnCorrupt::previous);
  if (!choice.rejected.empty()) throw InputError("published and damaged: " + choice.rejected[0].reason);
  return {choice.folder.step, load_checkpoint(fs, root / choice.folder.name())};
}

struct Cuts {
  Index points = 0, states = 0, violations = 0;
  std::string first_violation;
};

/// Steps 1 and 2 are durable; then `job` runs, and the power is cut at each of its changes in every way. Faults make
/// known-bad variants of the same code ("*:sync:*:skip").
Cuts cut_everywhere(const Job& job, const std::string& faults = "", const Loader& load = load_newest) {
  const auto model = std::make_shared<io::ModelFs>();
  for (const Index step : {1, 2}) save_checkpoint(*model, kRoot, step, state_at(step));
  Cuts cuts;
  Index acknowledged = 2;
  const auto cut = [&] {
    ++cuts.points;
    cuts.states += model->for_each_crash_state([&](io::ModelFs& left) {
      std::string problem;
      try {
        const Found found = load(left, kRoot);
        if (found.step < acknowledged)
          problem = str("step ", acknowledged, " was acknowledged, ", found.step, " is left");
        if (found.state != state_at(found.step)) problem = str("other values at step ", found.step);
      } catch (const Error& error) {
        problem = error.what();
      }
      if (problem.empty()) return;
      if (cuts.violations++ == 0) cuts.first_violation = str("change ", cuts.points, ": ", problem);
    });
  };
  model->on_change(cut);
  io::FaultFs fs(model, io::parse_faults(faults), 0);
  job(fs, kRoot);
  acknowledged = 3;
  cut();
  return cuts;
}

TEST(PowerCut, ASaveNeverLosesACheckpoint) {
  const Cuts cuts = cut_everywhere(save_step_3);
  EXPECT_EQ(cuts.violations, 0) << cuts.first_violation;
  EXPECT_GT(cuts.points, 15);
  EXPECT_GT(cuts.states, 100);
  RecordProperty("states", static_cast<int>(cuts.states));
}

TEST(PowerCut, NorDoesADeletion) {
  const Cuts cuts = cut_everywhere(save_step_3_and_prune);
  EXPECT_EQ(cuts.violations, 0) << cuts.first_violation;
  EXPECT_GT(cuts.states, 150);
  RecordProperty("states", static_cast<int>(cuts.states));
}

TEST(PowerCut, NorASecondSaveOfAStep) {
  const Cuts cuts = cut_everywhere([](io::Fs& fs, const io::Path& root) {
    save_step_3(fs, root);
    save_step_3(fs, root);  // a re-save becomes step 3, revision 2
  });
  EXPECT_EQ(cuts.violations, 0) << cuts.first_violation;
}

// The controls: the same code with a part left out. Each must show.
TEST(PowerCutControl, NoSyncOfFiles) { EXPECT_GT(cut_everywhere(save_step_3, "*:sync:*:skip").violations, 10); }

TEST(PowerCutControl, NoSyncOfFolders) { EXPECT_GT(cut_everywhere(save_step_3, "*:sync_dir:*:skip").violations, 10); }

TEST(PowerCutControl, OldOnesDeletedFirst) {
  EXPECT_GT(cut_everywhere([](io::Fs& fs, const io::Path& root) {
              for (const io::StepFolder& old : io::published(fs, root)) io::remove_published(fs, root, old);
              save_step_3(fs, root);
            }).violations,
            10);
}

TEST(PowerCutControl, APointerFileThatIsBelieved) {
  const auto save_with_pointer = [](io::Fs& fs, const io::Path& root) {
    save_step_3(fs, root);
    if (fs.exists(root / "latest")) fs.unlink(root / "latest");
    fs.create(root / "latest")->write(std::string_view("step_00000003"));
  };
  const Loader believes_it = [](io::Fs& fs, const io::Path& root) -> Found {
    if (!fs.exists(root / "latest")) return load_newest(fs, root);
    const std::string name(fs.map(root / "latest").text());
    const auto folder = io::parse_step_folder(name);
    if (!folder) throw InputError("latest names nothing: " + name);
    return {folder->step, load_checkpoint(fs, root / name)};
  };
  EXPECT_GT(cut_everywhere(save_with_pointer, "", believes_it).violations, 0);
}

TEST(PowerCutControl, NoChecksums) {
  // Trusts sizes and headers: zeros that a cut left in a shard are loaded as weights.
  const Loader trusts_all = [](io::Fs& fs, const io::Path& root) -> Found {
    for (const io::StepFolder& folder : io::published(fs, root)) {
      const io::Path path = root / folder.name();
      try {
        const Manifest manifest = read_manifest(fs, path);
        std::vector<Global> state = random_state(0);
        for (Global& global : state) {
          const auto tensor = std::ranges::find(manifest.tensors, global.name, &TensorRecord::name);
          for (const ShardSlice& slice : tensor->slices) {
            const io::MappedFile file = fs.map(path / slice.file);
            const SafeTensorsHeader header = parse_safetensors(file.bytes(), slice.file);
            const TensorInfo* info = header.find(slice.entry);
            Part part = cut(global, slice.box);
            std::memcpy(part.values.data(), file.bytes().data() + info->begin, part.values.size());
            copy_common(slice.box, part.values.data(), box_of(global.slice()), global.values.data(),
                        size_of(global.dtype));
          }
        }
        return {folder.step, state};
      } catch (const InputError&) {
        continue;
      }
    }
    throw InputError("nothing is left");
  };
  EXPECT_EQ(cut_everywhere(save_step_3, "", trusts_all).violations, 0);
  const Cuts bad = cut_everywhere(save_step_3, "*:sync:1+:skip", trusts_all);
  EXPECT_GT(bad.violations, 0);
  EXPECT_NE(bad.first_violation.find("other values"), std::string::npos) << bad.first_violation;
}

}  // namespace
}  // namespace megalith::checkpoint
