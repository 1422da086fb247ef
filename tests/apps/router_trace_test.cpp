// `train --router-trace FILE` and moe.replay: decisions of routers, dropped pairs among them, that runs repeat.
#include <gmock/gmock.h>

#include "megalith/base/str.h"

#include "tests/apps/program.h"

namespace megalith::support {
namespace {

using ::testing::HasSubstr;

class RouterTrace : public Program {
 protected:
  std::string moe_run(const std::string& name, const std::string& more) const {
    return train(name,
                 "--set train.steps=3 --set train.eval_interval=0 --set moe.num_experts=4 --set moe.capacity=drop "
                 "--set moe.capacity_factor=1 --set moe.capacity_run=4 " +
                     more);
  }
  std::string trace() const { return out("decisions"); }
  std::string record(const std::string& more = "") const { return "--router-trace " + trace() + " " + more; }
  std::string replay(const std::string& more = "") const { return "--set moe.replay=" + trace() + " " + more; }
  /// The decisions of the file of 3 steps, 4 layers, 8 * 16 tokens and 2 experts a token, without its first line.
  std::vector<std::uint16_t> decisions() const {
    std::ifstream file(trace(), std::ios::binary);
    std::string line;
    std::getline(file, line);
    std::vector<std::uint16_t> values(3 * 4 * 8 * 16 * 2);
    file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(2 * values.size()));
    return values;
  }
};

TEST_F(RouterTrace, RepeatsARunAndItsDroppedPairs) {
  ASSERT_EQ(run_shell(moe_run("first", record())).code, 0);
  EXPECT_THAT(run_shell("head -n 1 " + trace()).out,
              HasSubstr("layers 4 experts 4 top_k 2 tokens 128 seq_len 16 pattern mmmm capacity 2:4 first_step 0"));
  const std::vector<std::uint16_t> of_first = decisions();
  std::size_t dropped = 0;
  for (const std::uint16_t value : of_first) {
    EXPECT_LT(value % 0x8000, 4);
    dropped += value / 0x8000;
  }
  EXPECT_GT(dropped, 0u);
  const Finished again = run_shell(moe_run("again", replay()));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(metrics("again"), metrics("first"));
}

// Its first step is not the run's, which the reader has to know.
TEST_F(RouterTrace, OfAResumedRunIsRepeatedByOneThatResumesThere) {
  const auto ended_after = [](const char* steps) { return str("--set train.steps=", steps, " "); };
  ASSERT_EQ(run_shell(moe_run("first", ended_after("2"))).code, 0);
  ASSERT_EQ(run_shell("cp -r " + out("first") + " " + out("again")).code, 0);
  ASSERT_EQ(run_shell(moe_run("first", record(ended_after("5") + "--resume"))).code, 0);
  EXPECT_THAT(run_shell("head -n 1 " + trace()).out, HasSubstr(" first_step 2\n"));
  // Where decisions are made by the run itself they are these; where they are replayed they are read at their steps.
  const Finished again = run_shell(moe_run("again", replay(ended_after("5") + "--resume")));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(metrics("again"), metrics("first"));
  const Finished early = run_shell(moe_run("early", replay(ended_after("5"))));
  EXPECT_EQ(early.code, 64);
  EXPECT_THAT(early.err, HasSubstr("has steps 3 to 5; this run trains steps 1 to 5"));
  // Decisions of other steps give another run.
  const std::string line = run_shell("head -n 1 " + trace()).out;
  ASSERT_EQ(run_shell("tail -c +" + std::to_string(line.size() + 1) + " " + trace() + " >" + out("values")).code, 0);
  const std::size_t step_bytes = 4 * 8 * 16 * 2 * 2;
  ASSERT_EQ(run_shell(str("(head -n 1 ", trace(), "; tail -c ", 2 * step_bytes, " ", out("values"), "; head -c ",
                          step_bytes, " ", out("values"), ") >", out("turned"), " && mv ", out("turned"), " ", trace()))
                .code,
            0);
  ASSERT_EQ(run_shell("rm -r " + out("again") + " && " + moe_run("again", ended_after("2"))).code, 0);
  ASSERT_EQ(run_shell(moe_run("again", replay(ended_after("5") + "--resume"))).code, 0);
  EXPECT_NE(metrics("again"), metrics("first"));
}

TEST_F(RouterTrace, IsTheSameOnEveryGrid) {
  ASSERT_EQ(run_shell(moe_run("one", record("--set train.precision=fp64"))).code, 0);
  const std::vector<std::uint16_t> want = decisions();
  for (const char* grid : {"--set parallel.ep=2", "--set parallel.tp=2", "--set parallel.pp=2"}) {
    const std::string name = std::string(grid).substr(15, 2);
    const Finished run = run_shell(moe_run(name, record(std::string("--set train.precision=fp64 ") + grid)));
    ASSERT_EQ(run.code, 0) << run.err;
    EXPECT_EQ(decisions(), want) << grid;
    ASSERT_EQ(run_shell(moe_run(name + "-again", replay(grid))).code, 0);
  }
}

TEST_F(RouterTrace, OfOtherDecisionsGivesAnotherRun) {
  ASSERT_EQ(run_shell(moe_run("first", record())).code, 0);
  // Expert 0 becomes 1, and 1 becomes 0.
  std::vector<std::uint16_t> turned = decisions();
  for (std::uint16_t& value : turned) value = static_cast<std::uint16_t>(value % 0x8000 < 2 ? value ^ 1 : value);
  const std::string line = run_shell("head -n 1 " + trace()).out;
  std::ofstream(trace(), std::ios::binary)
      .write(line.data(), static_cast<std::streamsize>(line.size()))
      .write(reinterpret_cast<const char*>(turned.data()), static_cast<std::streamsize>(2 * turned.size()));
  ASSERT_EQ(run_shell(moe_run("turned", replay())).code, 0);
  EXPECT_NE(metrics("turned"), metrics("first"));
}

TEST_F(RouterTrace, RefusesWhatDoesNotFit) {
  ASSERT_EQ(run_shell(moe_run("first", record())).code, 0);
  const auto refused = [&](const std::string& more, int code, const std::string& words) {
    const Finished run = run_shell(moe_run("refused", more));
    EXPECT_EQ(run.code, code) << more << run.err;
    EXPECT_THAT(run.err, HasSubstr(words));
  };
  refused(replay("--set moe.top_k=1"), 64,
          "has 4 MoE layers (mmmm), 4 experts, top_k 2, 128 tokens a step, seq_len 16, capacity 2:4; this run has");
  refused(replay("--set model.seq_len=8 --set train.global_batch=16"), 64, "128 tokens a step, seq_len 8");
  refused(replay("--set moe.capacity_factor=0.5"), 64, "capacity 1:4");
  refused(replay("--set moe.force_balance=true"), 64, "moe.force_balance = true: moe.replay");
  refused(replay("--set train.steps=4"), 64, "has steps 1 to 3; this run trains steps 1 to 4");
  refused(replay(record()), 64, "already holds these decisions");
  refused("--set moe.replay=" + recipe(), 65, "moe.replay = " + recipe() + ": line 1, column 1, is not a router trace");
  refused("--set moe.replay=" + out("absent"), 65,
          "moe.replay = " + out("absent") + ": there is no such file; `megalith");
  refused("--set moe.replay=/tmp", 65, "moe.replay = /tmp: is a folder, and must be a file");
  ASSERT_EQ(run_shell("printf '\\011' | dd of=" + trace() + " bs=1 conv=notrunc seek=$(($(stat -c %s " + trace() +
                      ") - 2)) status=none")
                .code,
            0);
  refused(replay(), 65,
          "of the file, step 3, MoE layer 3 names expert 9: must be below moe.num_experts = 4, the experts of line 1");
  refused(replay(), 65, "moe.replay = " + trace() + ": line 2, byte ");
  // The last token's second expert becomes its first.
  ASSERT_EQ(run_shell("dd if=" + trace() + " of=" + trace() + " bs=1 conv=notrunc count=2 skip=$(($(stat -c %s " +
                      trace() + ") - 4)) seek=$(($(stat -c %s " + trace() + ") - 2)) status=none")
                .code,
            0);
  refused(replay(), 65, "step 3, MoE layer 3, token 127 of the batch names expert ");
  ASSERT_EQ(run_shell("truncate -s -3 " + trace()).code, 0);
  refused(replay(), 65, "is cut: 2045 of the 2048 bytes of a step are after its last whole step");
  const Finished dense = run_shell(train("dense", record()));
  EXPECT_EQ(dense.code, 64);
  EXPECT_THAT(dense.err, HasSubstr("the model has no experts"));
}

TEST_F(RouterTrace, OfARunThatFailsIsNotThere) {
  EXPECT_EQ(run_shell("MEGALITH_FAULT=0:write:12:EIO " + moe_run("failed", record())).code, 74);
  EXPECT_EQ(run_shell("test -e " + trace() + ".unfinished").code, 0);
  EXPECT_EQ(run_shell("test -e " + trace()).code, 1);
}

}  // namespace
}  // namespace megalith::support
