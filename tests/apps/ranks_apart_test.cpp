// Processes of one job that were started with different settings, or that find different files: refused before step 1.
#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith {
namespace {

using support::Finished;
using support::mpirun;
using support::run_shell;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class RanksApart : public support::Program {
 protected:
  void SetUp() override {
#ifndef MEGALITH_WITH_MPI
    GTEST_SKIP() << "MPI is not built in";
#endif
  }
  /// The same command as two processes, the second with `more`, which may name another OUT.
  Finished train_apart(const std::string& all, const std::string& more, const std::string& out_of_second = "a") const {
    return run_shell(mpirun(1, train_process("a", all)) + " : -np 1 " + train_process(out_of_second, all + more));
  }
};

struct Setting {
  const char* set;   ///< of the second process
  const char* said;  ///< in the refusal
};

class OtherSetting : public RanksApart, public ::testing::WithParamInterface<Setting> {};

TEST_P(OtherSetting, IsRefusedWithBothValues) {
  const Finished refused = train_apart("", std::string(" --set ") + GetParam().set);
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("error: ranks were started with different settings; all must have the same:\n"));
  EXPECT_THAT(refused.err, HasSubstr(GetParam().said));
  EXPECT_FALSE(std::filesystem::exists(out("a")));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, OtherSetting,
    ::testing::Values(Setting{"optimizer.lr=0.01", "\n  optimizer.lr = 0.01 on rank 1, 0.003 on rank 0\n"},
                      Setting{"train.seed=7", "\n  train.seed = 7 on rank 1, 1234 on rank 0\n"},
                      Setting{"train.steps=9", "\n  train.steps = 9 on rank 1, 8 on rank 0\n"},
                      Setting{"train.eval_interval=3", "\n  train.eval_interval = 3 on rank 1, 4 on rank 0\n"},
                      Setting{"checkpoint.interval=3", "\n  checkpoint.interval = 3 on rank 1, "},
                      Setting{"checkpoint.keep=5", "\n  checkpoint.keep = 5 on rank 1, "},
                      Setting{"model.dropout=0.2", "\n  model.dropout = 0.2 on rank 1, 0.1 on rank 0\n"},
                      Setting{"optimizer.clip=0.5", "\n  optimizer.clip = 0.5 on rank 1, "},
                      Setting{"optimizer.weight_decay=0", "\n  optimizer.weight_decay = 0"},
                      Setting{"optimizer.distributed=true",
                              "\n  optimizer.distributed = true on rank 1, false on rank 0"},
                      Setting{"train.precision=fp64", "\n  train.precision = 'fp64' on rank 1, 'fp32' on rank 0\n"},
                      Setting{"train.global_batch=16", "\n  train.global_batch = 16 on rank 1, 8 on rank 0\n"},
                      Setting{"model.seq_len=8", "\n  model.seq_len = 8 on rank 1, 16 on rank 0\n"},
                      Setting{"model.hidden_size=40", "\n  model.hidden_size = 40 on rank 1, 20 on rank 0\n"},
                      Setting{"parallel.tp=2", "\n  parallel.tp = 2 on rank 1, 1 on rank 0\n"},
                      Setting{"graphs.mode=iteration", "\n  graphs.mode = 'iteration' on rank 1, 'none' on rank 0\n"},
                      Setting{"data.split=0.8", "\n  data.split = '0.8' on rank 1, '0.9' on rank 0\n"}),
    [](const auto& each) {
      std::string name = each.param.set;
      for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
      return name;
    });

TEST_F(RanksApart, AnotherCorpusIsRefusedAndTheSameOneElsewhereIsNot) {
  std::filesystem::copy_file(dir_ / "text.txt", dir_ / "same.txt");
  std::filesystem::copy_file(dir_ / "text.txt", dir_ / "other.txt");
  std::fstream(dir_ / "other.txt", std::ios::in | std::ios::out).seekp(500) << "!";
  const Finished refused = train_apart("", " --set data.train=" + out("other.txt"));
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_THAT(refused.err,
              ContainsRegex("\n  what data.train has = [0-9]+ tokens, fingerprint [0-9a-f]{16} on rank 1, "));
  EXPECT_FALSE(std::filesystem::exists(out("a")));
  EXPECT_EQ(train_apart("", " --set data.train=" + out("same.txt")).code, 0);
}

TEST_F(RanksApart, AResumeIsRefusedAsOne) {
  const Finished alone = train_apart("", " --resume=auto");
  EXPECT_EQ(alone.code, 64) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("\n  --resume = auto on rank 1, no on rank 0\n"));
  ASSERT_EQ(run_shell(train("a", "--set train.steps=4")).code, 0);
  const std::string more = "--resume --set train.steps=12";
  const Finished other_recipe = train_apart(more, " --set optimizer.lr=0.01");
  EXPECT_EQ(other_recipe.code, 66) << other_recipe.err;
  EXPECT_THAT(other_recipe.err, HasSubstr("\n  optimizer.lr = 0.01 on rank 1, 0.003 on rank 0\n"));
  ASSERT_EQ(run_shell(train("b", "--set train.steps=6")).code, 0);
  const Finished other_checkpoint = train_apart(more, "", "b");
  EXPECT_EQ(other_checkpoint.code, 66) << other_checkpoint.err;
  EXPECT_THAT(
      other_checkpoint.err,
      ContainsRegex("\n  the newest checkpoint = step_00000006, manifest [0-9a-f]{16} on rank 1, step_00000004, "));
  EXPECT_EQ(train_apart(more, "").code, 0);
}

TEST_F(RanksApart, OtherValuesToStartFromAreRefusedAndTheSameOnesElsewhereAreNot) {
  ASSERT_EQ(run_shell(train("one", "--set train.steps=2")).code, 0);
  ASSERT_EQ(run_shell(train("two", "--set train.steps=4")).code, 0);
  std::filesystem::copy(dir_ / "one", dir_ / "same", std::filesystem::copy_options::recursive);
  const std::string init = " --set train.init=";
  for (const auto& [of_first, of_second] : {std::pair{init + out("one"), init + out("two")}, {"", init + out("two")}}) {
    const Finished refused =
        run_shell(mpirun(1, train_process("a", of_first)) + " : -np 1 " + train_process("a", of_second));
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_THAT(
        refused.err,
        ContainsRegex("\n  what train\\.init has = manifest [0-9a-f]{16} on rank 1, (manifest [0-9a-f]{16}|unset) "
                      "on rank 0\n"));
    EXPECT_FALSE(std::filesystem::exists(out("a")));
  }
  const Finished same = run_shell(mpirun(1, train_process("a", init + out("one"))) + " : -np 1 " +
                                  train_process("a", init + out("same")));
  EXPECT_EQ(same.code, 0) << same.err;
}

TEST_F(RanksApart, OtherDecisionsToReplayAreRefused) {
  const std::string experts = " --set train.steps=2 --set moe.num_experts=4", replay = " --set moe.replay=";
  ASSERT_EQ(run_shell(train("one", experts + " --router-trace " + out("first"))).code, 0);
  ASSERT_EQ(run_shell(train("two", experts + " --set train.seed=9 --router-trace " + out("second"))).code, 0);
  std::filesystem::copy(out("first"), out("same"));
  for (const auto& [of_first, of_second] :
       {std::pair{replay + out("first"), replay + out("second")}, {"", replay + out("second")}}) {
    const Finished refused = run_shell(mpirun(1, train_process("a", experts + of_first)) + " : -np 1 " +
                                       train_process("a", experts + of_second));
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_THAT(refused.err, ContainsRegex("\n  what moe\\.replay has = decisions of hash [0-9a-f]{16} on rank 1, "));
    EXPECT_FALSE(std::filesystem::exists(out("a")));
  }
  const Finished same = run_shell(mpirun(1, train_process("a", experts + replay + out("first"))) + " : -np 1 " +
                                  train_process("a", experts + replay + out("same")));
  EXPECT_EQ(same.code, 0) << same.err;
}

TEST_F(RanksApart, AFolderOfCheckpointsOnOneRankAloneIsRefused) {
  const Finished refused = train_apart("", " --set checkpoint.dir=" + out("elsewhere"));
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("\n  checkpoint.dir = a folder on rank 1, unset on rank 0\n"));
}

TEST_F(RanksApart, AWrongCommandLineOfOneRankIsPrintedWithItsRank) {
  const std::string right = train_process("a");
  for (const auto& [wrong, said] :
       {std::pair{right + " --trian", "error: rank 1: The following argument was not expected: --trian\n"},
        {right + " --stepz=3 --lr 1", "error: rank 1: --lr: no such option; did you mean --set optimizer.lr=VALUE?"},
        {support::program() + " trian " + recipe(), "error: rank 1: megalith trian: no such command; did you mean"},
        {right + " --ranks x", "error: rank 1: --ranks: must be a number from 1, not x\n"},
        {right + " --out b", "error: rank 1: --out: "}}) {
    const Finished refused = run_shell(mpirun(1, right) + " : -np 1 " + wrong);
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(said));
    EXPECT_THAT(refused.err, Not(HasSubstr("Usage:")));
    EXPECT_FALSE(std::filesystem::exists(out("a")));
  }
}

TEST_F(RanksApart, ACommandLineThatIsWrongInAllRanksIsPrintedByTheFirst) {
  for (const std::string& wrong : {train_process("a", "--trian"), support::program() + " trian " + recipe()}) {
    const Finished refused = run_shell(mpirun(2, wrong));
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("error: "));
    EXPECT_THAT(refused.err, Not(HasSubstr("error: rank 1"))) << "mpirun has ended it by then";
  }
}

TEST_F(RanksApart, ACommandOfTheFirstAloneBesideOneOfAllRanksIsRefused) {
  const Finished refused =
      run_shell("timeout 60 " + mpirun(1, train_process("a")) + " : -np 1 " + support::program() + " plan " + recipe());
  EXPECT_EQ(refused.code, 64) << refused.err;
  EXPECT_THAT(refused.err, HasSubstr("error: rank 1: plan: the first process alone runs it, and mpirun has started"));
  const Finished planned = run_shell(mpirun(2, support::program() + " plan " + recipe()));
  EXPECT_EQ(planned.code, 0) << planned.err;
}

// mpirun sends it when another rank is killed, and to all when it gets one itself.
TEST_F(RanksApart, AnEndBeforeTheFirstStepIsNotPutDownToTheUser) {
  const Finished ended = run_shell(mpirun(1, train_process("a")) + " : -np 1 bash -c 'sleep 2; exit 9'");
  EXPECT_EQ(ended.code, 9) << ended.err;
  EXPECT_THAT(ended.err,
              HasSubstr("megalith: ended by a signal (Terminated), as a launcher sends when another rank has "
                        "failed, before the first step: nothing was trained\n"));
}

TEST_F(RanksApart, FoldersThatRanksDoNotShareAreRefused) {
  std::filesystem::create_directory(dir_ / "b");
  for (const char* timeout : {"", "--set parallel.timeout_s=3", "--set parallel.timeout_s=0.7"}) {  // they look for 5 s
    const Finished refused = train_apart(timeout, "", "b");
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_THAT(refused.err,
                ContainsRegex("error: --out = .*/b: rank 1 on .* does not see .*/a/ranks\\.tmp-[0-9a-f]{16}, "
                              "which rank 0 has just made; it must be one folder"));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out("a")))
      EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("ranks"))) << "left over";
  }
}

}  // namespace
}  // namespace megalith
