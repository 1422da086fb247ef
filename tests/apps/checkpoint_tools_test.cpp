#include <filesystem>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

// What `megalith checkpoint diff`, average, prune and reshard take, write and print.
namespace megalith {
namespace {

using nlohmann::json;
using support::Finished;
using support::Program;
using support::run_shell;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class CheckpointTools : public Program {
 protected:
  static Finished tool(const std::string& arguments) { return run_shell("megalith checkpoint " + arguments); }
  void train_as(const std::string& name, const std::string& more = "") {
    const Finished done = run_shell(train(name, more));
    ASSERT_EQ(done.code, 0) << done.err;
  }
  std::string step(const std::string& name, int number) const {
    return out(name) + "/checkpoints/step_0000000" + std::to_string(number);
  }
  std::string digest(const std::string& name) const {
    const Finished info = tool("info " + out(name) + " --format json");
    return info.code == 0 ? json::parse(info.out)["state_digest"].get<std::string>() : info.err;
  }
  /// The files of the only checkpoint of a folder, without the manifest, and their contents.
  static std::map<std::string, std::string> files_of(const std::string& checkpoint) {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
      const std::string name = entry.path().filename().string();
      if (name != "MANIFEST") files[name] = read_all(entry.path());
    }
    return files;
  }
  /// The headers of shards: names and shapes of their tensors.
  static std::map<std::string, std::string> headers_of(const std::string& checkpoint) {
    std::map<std::string, std::string> headers;
    for (const auto& [name, bytes] : files_of(checkpoint)) {
      std::uint64_t size = 0;
      std::memcpy(&size, bytes.data(), sizeof size);
      headers[name] = bytes.substr(sizeof size, size);
    }
    return headers;
  }
};

constexpr const char* kSaves = "--set checkpoint.interval=4 --set checkpoint.keep=9 --set train.steps=8";

TEST_F(CheckpointTools, DiffComparesGridsAndSteps) {
  train_as("a", kSaves);
  train_as("b", std::string(kSaves) + " --set parallel.tp=2 --set parallel.pp=2");
  const Finished same = tool("diff " + out("a") + " " + step("a", 8));
  EXPECT_EQ(same.code, 0);
  EXPECT_THAT(same.out, HasSubstr(" tensors are equal, 0 differ\n"));
  const Finished grids = tool("diff " + out("a") + " " + out("b"));
  EXPECT_EQ(grids.code, 1);
  EXPECT_EQ(grids.err, "") << "a difference is a result, no error";
  EXPECT_THAT(grids.out, HasSubstr("tp 2 pp 2 dp 1"));
  EXPECT_THAT(grids.out,
              ContainsRegex("\n  optimizer.v.embedding.token.weight: [0-9]+ of 5120 elements differ; largest "
                            "difference [0-9.e-]+ \\([0-9.e-]+ of the largest magnitude\\) at \\[[0-9]+, "
                            "[0-9]+\\]: [0-9.e-]+ in A, [0-9.e-]+ in B\n"));
  EXPECT_THAT(grids.out, ContainsRegex("[0-9]+ tensors are equal, [1-9][0-9]* differ\n$"));
  EXPECT_THAT(grids.out, ContainsRegex("[1-9][0-9]{5}.* in A")) << "values are not rounded";
  EXPECT_THAT(grids.out, Not(ContainsRegex("[0-9]{14} in [AB]"))) << "an f32 has at most 9 digits";
  const Finished within = tool("diff " + out("a") + " " + out("b") + " --within 1 --format json");
  EXPECT_EQ(within.code, 0);
  const json report = json::parse(within.out);
  EXPECT_EQ(report["equal"], true);
  EXPECT_EQ(report["a"]["step"], 8);
  const Finished steps = tool("diff " + step("a", 4) + " " + step("a", 8));
  EXPECT_EQ(steps.code, 1);
  EXPECT_THAT(steps.out, HasSubstr("  step: 4 in A, 8 in B\n"));
  EXPECT_THAT(steps.out, HasSubstr("\n  samples: 32 in A, 64 in B\n"));
  EXPECT_THAT(steps.out, ContainsRegex(" differ; of step, counters and scales 3 differ\n$"));
  const Finished accepted = tool("diff " + out("a") + " " + out("b") + " --within 1");
  EXPECT_THAT(accepted.out, ContainsRegex(" in B; --within accepts this\n"));
  EXPECT_THAT(accepted.out, ContainsRegex(" are equal, [0-9]+ differ by what --within 1 accepts, 0 differ by more\n$"));
}

TEST_F(CheckpointTools, DiffNamesWhatMakesAnotherModel) {
  train_as("a", "--set train.steps=1");
  train_as("b", "--set train.steps=1 --set model.hidden_size=24 --set model.num_layers=3");
  const Finished other = tool("diff " + out("a") + " " + out("b"));
  EXPECT_EQ(other.code, 66);
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(other.err, HasSubstr("are of different models:"));
  EXPECT_THAT(other.err, HasSubstr("model.hidden_size = 24: the checkpoint's model has 20"));
  EXPECT_THAT(other.err, HasSubstr("model.num_layers = 3: the checkpoint's model has 4"));
  EXPECT_THAT(other.err, HasSubstr("final_norm.weight: is [20] in A and [24] in B"));
  EXPECT_EQ(tool("diff " + out("a") + " " + out("none")).code, 65);
  EXPECT_EQ(tool("diff " + out("a")).code, 64);
  EXPECT_EQ(tool("diff " + out("a") + " " + out("a") + " --within -1").code, 64);
}

TEST_F(CheckpointTools, AMeanTrainsEvaluatesAndExports) {
  train_as("a", kSaves);
  const std::string both = step("a", 4) + " " + step("a", 8);
  const Finished made = tool("average " + both + " --out " + out("mean"));
  EXPECT_EQ(made.code, 0) << made.err;
  EXPECT_EQ(tool("verify " + out("mean")).code, 0);
  // Twice the mean less one of them is the other: through the difference that diff prints.
  const json to_first = json::parse(tool("diff " + step("a", 4) + " " + out("mean") + " --format json").out);
  const json to_second = json::parse(tool("diff " + step("a", 8) + " " + out("mean") + " --format json").out);
  int compared = 0;
  for (std::size_t i = 0; i < to_first["tensors"].size(); ++i) {
    const json &first = to_first["tensors"][i], &second = to_second["tensors"][i];
    if (first["result"] != "values") continue;
    ++compared;
    EXPECT_EQ(first["at"], second["at"]) << first["name"];
    // The mean is rounded once to f32, by at most half of this.
    EXPECT_NEAR(first["largest"].get<double>(), second["largest"].get<double>(), 0x1p-23 * first["scale"].get<double>())
        << first["name"];
  }
  EXPECT_GT(compared, 10);
  train_as("tuned", "--set train.steps=1 --set train.init='\"" + out("mean") + "\"'");
  EXPECT_EQ(run_shell("megalith generate --checkpoint " + out("mean") + " --prompt the --max-tokens 2").code, 0);
  const Finished exported = tool("export-hf " + out("mean") + " --out " + out("hf"));
  EXPECT_EQ(exported.code, 0) << exported.err;
  const Finished resumed = run_shell(train("mean", "--resume"));
  EXPECT_EQ(resumed.code, 66) << resumed.err;
}

TEST_F(CheckpointTools, AverageRefusesAllAtOnce) {
  train_as("a", "--set train.steps=1");
  train_as("b", "--set train.steps=1 --set model.hidden_size=24");
  train_as("c", "--set train.steps=1 --set train.precision='\"fp64\"'");
  const Finished models = tool("average " + out("a") + " " + out("b") + " " + out("c") + " --out " + out("mean"));
  EXPECT_EQ(models.code, 66);
  EXPECT_THAT(models.err, HasSubstr("model.hidden_size = 24"));
  EXPECT_THAT(models.err, HasSubstr("train.precision = fp64: the first one has fp32"));
  EXPECT_FALSE(std::filesystem::exists(out("mean")));
  const Finished one = tool("average " + out("a") + " --out " + out("mean"));
  EXPECT_EQ(one.code, 64);
  EXPECT_THAT(one.err, HasSubstr("a mean needs two checkpoints or more"));
  const Finished twice = tool("average " + out("a") + " " + out("a") + " --out " + out("mean"));
  EXPECT_EQ(twice.code, 64);
  EXPECT_THAT(twice.err, HasSubstr("is named twice"));
  EXPECT_EQ(tool("average " + out("a") + " " + out("b") + " --out " + out("a")).code, 64);
}

TEST_F(CheckpointTools, PruneRemovesOldOnes) {
  train_as("a", "--set checkpoint.interval=1 --set checkpoint.keep=9");
  const auto left = [&] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(out("a") + "/checkpoints"))
      count += entry.path().filename().string().starts_with("step_") ? 1 : 0;
    return count;
  };
  ASSERT_EQ(left(), 8U);
  const Finished dry = tool("prune " + out("a") + " --keep 1 --every 3 --dry-run");
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, HasSubstr("  step_00000007: would be removed\n  step_00000006: stays: --every 3\n"));
  EXPECT_THAT(dry.out, HasSubstr("5 of 8 checkpoints would be removed, "));
  EXPECT_EQ(left(), 8U);
  std::filesystem::create_directory(out("a") + "/checkpoints/step_00000009.tmp-0123456789abcdef");
  const Finished done = tool("prune " + out("a") + " --keep 1 --every 3 --format json");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(json::parse(done.out)["checkpoints"][1]["fate"], "removed");
  EXPECT_EQ(left(), 3U) << "8, 6, 3; the remains of a dead save are gone, too";
  EXPECT_EQ(tool("verify " + out("a")).code, 0);
  const Finished of_one = tool("prune " + step("a", 8));
  EXPECT_EQ(of_one.code, 64);
  EXPECT_THAT(of_one.err, HasSubstr("is one checkpoint"));
  EXPECT_EQ(tool("prune " + out("a") + " --keep 0").code, 64);
  EXPECT_EQ(tool("prune " + out("none")).code, 65);
}

TEST_F(CheckpointTools, PruneKilledAtEachOperationLosesNoneThatStays) {
  train_as("a", "--set checkpoint.interval=2 --set checkpoint.keep=9");
  for (int n = 1; n < 60; ++n) {
    std::filesystem::remove_all(out("b"));
    std::filesystem::copy(out("a"), out("b"), std::filesystem::copy_options::recursive);
    for (const std::string operation : {"rename", "unlink", "sync_dir", "remove_dir"}) {
      const Finished killed = run_shell("MEGALITH_FAULT=0:" + operation + ":" + std::to_string(n) +
                                        ":kill megalith checkpoint prune " + out("b") + " --keep 1");
      ASSERT_EQ(tool("verify " + out("b")).code, 0) << operation << ' ' << n << killed.err;
      ASSERT_EQ(digest("b"), digest("a"));
    }
    const Finished last = tool("prune " + out("b") + " --keep 1");
    ASSERT_EQ(last.code, 0) << last.err;
    ASSERT_EQ(std::distance(std::filesystem::directory_iterator(out("b") + "/checkpoints"),
                            std::filesystem::directory_iterator()),
              2)
        << "one checkpoint, and run.lock";
    if (n >= 6) break;
  }
}

TEST_F(CheckpointTools, PruneIsRefusedWhileARunSaves) {
  const Finished busy =
      support::beside_a_run(train_process("a", "--set checkpoint.interval=2"), out("a"),
                            "megalith checkpoint prune " + out("a") + "; echo code $?; " + support::kStop);
  EXPECT_THAT(busy.out, HasSubstr("code 74"));
  EXPECT_THAT(busy.err, HasSubstr("the folder is in use by"));
}

TEST_F(CheckpointTools, ReshardWritesTheFilesOfTheOtherGrid) {
  train_as("one", "--set train.steps=2");
  for (const std::string grid :
       {"tp=2 pp=2", "dp=2 distributed=true", "pp=2 chunks=2", "tp=2 dp=2 sequence_parallel=true"}) {
    std::filesystem::remove_all(out("as"));
    std::filesystem::remove_all(out("other"));
    std::filesystem::remove_all(out("back"));
    const Finished done = tool("reshard " + out("one") + " --grid '" + grid + "' --out " + out("as"));
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(tool("verify " + out("as")).code, 0) << grid;
    EXPECT_EQ(digest("as"), digest("one")) << grid;
    std::string settings;
    for (std::size_t at = 0, end = 0; at < grid.size(); at = end + 1) {
      end = std::min(grid.find(' ', at), grid.size());
      const std::string word = grid.substr(at, end - at);
      if (word == "dp=2") {
        settings += grid.starts_with("tp") ? " --set parallel.ranks=4" : " --set parallel.ranks=2";
      } else {
        settings += " --set " + std::string(word.starts_with("dist") ? "optimizer." : "parallel.") + word;
      }
    }
    train_as("other", "--set train.steps=2" + settings);
    EXPECT_EQ(headers_of(step("as", 2)), headers_of(step("other", 2))) << grid;
    const std::string more = settings + " --set train.steps=3";
    EXPECT_EQ(run_shell(train("as", "--resume" + more)).code, 0) << grid;
    ASSERT_EQ(tool("reshard " + step("as", 2) + " --grid one --out " + out("back")).code, 0);
    EXPECT_EQ(files_of(step("back", 2)), files_of(step("one", 2))) << grid;
  }
}

TEST_F(CheckpointTools, ReshardRefusesGridsAndExportsParts) {
  train_as("a", "--set train.steps=1");
  const auto reshard = [&](const std::string& arguments) {
    return tool("reshard " + out("a") + " --out " + out("b") + " " + arguments);
  };
  const Finished words = reshard("--grid 'tp=2 pq=3 tp=4 dp=x nine'");
  EXPECT_EQ(words.code, 64);
  for (const char* text : {"pq=3: is no KEY=VALUE of a grid", "tp: is there twice", "dp = x: must be a whole number",
                           "nine: is no KEY=VALUE of a grid"})
    EXPECT_THAT(words.err, HasSubstr(text));
  const Finished rules = reshard("--grid 'tp=3 pp=7'");
  EXPECT_EQ(rules.code, 64);
  EXPECT_THAT(rules.err, HasSubstr("problems"));
  EXPECT_FALSE(std::filesystem::exists(out("b")));
  EXPECT_EQ(reshard("").code, 64);
  const std::string file = out("part.safetensors");
  const Finished part =
      tool("reshard " + out("a") + " --only 'layers.1.*.weight' --only final_norm.bias --out " + file);
  ASSERT_EQ(part.code, 0) << part.err;
  const std::string bytes = read_all(file);
  EXPECT_THAT(bytes, HasSubstr("\"layers.1.mlp.up.weight\""));
  EXPECT_THAT(bytes, HasSubstr("\"final_norm.bias\""));
  EXPECT_THAT(bytes, Not(HasSubstr("optimizer")));
  EXPECT_THAT(bytes, Not(HasSubstr("layers.0")));
  const Finished again = tool("reshard " + out("a") + " --only final_norm.bias --out " + file);
  EXPECT_EQ(again.code, 64);
  const Finished none = tool("reshard " + out("a") + " --only final_norm.bia --only x* --out " + out("c.safetensors"));
  EXPECT_EQ(none.code, 64);
  EXPECT_THAT(none.err, HasSubstr("did you mean final_norm.bias?"));
  EXPECT_THAT(none.err, HasSubstr("--only = x*: is the name of no tensor"));
}

}  // namespace
}  // namespace megalith
