// Processes of one host read each other's rows as rank threads do: experts, clones of experts, rows of a rank.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith {
namespace {

using support::Finished;
using support::mpirun;
using support::run_shell;
using ::testing::HasSubstr;

struct Way {
  const char* name;
  int ranks;
  const char* settings;
};

class ProcessRows : public support::Program, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
#ifndef MEGALITH_WITH_MPI
    GTEST_SKIP() << "MPI is not built in";
#endif
  }
  static std::string experts(const std::string& more) {
    return "--set moe.num_experts=8 --set moe.top_k=2 --set moe.router_skew=0.3 " + more;
  }
  /// Without the lines about graphs, which have times.
  std::vector<std::string> steps(const std::string& name) const {
    std::vector<std::string> lines = metrics(name);
    std::erase_if(lines, [](const std::string& line) { return line.starts_with("{\"graphs\""); });
    return lines;
  }
  /// "... state digest 1234": of the state of all ranks at the end.
  static std::string digest_of(const Finished& run) {
    const std::size_t at = run.err.find("state digest ");
    return at == run.err.npos ? "none: " + run.err : run.err.substr(at, run.err.find_first_of(",;\n", at) - at);
  }
};

TEST_P(ProcessRows, GiveTheBitsOfThreads) {
  const int ranks = GetParam().ranks;
  const std::string settings = GetParam().settings;
  const std::string all = experts(str(settings, " --set parallel.ranks=", ranks));
  const Finished threads = run_shell(train("threads", all));
  ASSERT_EQ(threads.code, 0) << threads.err;
  const Finished processes = run_shell(mpirun(ranks, train_process("processes", all)));
  ASSERT_EQ(processes.code, 0) << processes.err;
  EXPECT_EQ(steps("processes"), steps("threads"));
  EXPECT_EQ(digest_of(processes), digest_of(threads));
  const bool reran = steps("processes").front().find("\"rerun\":1") != std::string::npos;
  EXPECT_TRUE(reran || settings.find("rank_capacity_factor") == std::string::npos);
  EXPECT_THAT(digest_of(threads), ::testing::Not(HasSubstr("none")));
  if (settings.find("moe.echo.") != std::string::npos) {
    EXPECT_THAT(steps("threads").front(), ::testing::ContainsRegex("\"clones\":[1-9]"));
  }
  const Finished values = run_shell("cd " + dir_.path().string() +
                                    " && for file in $(cd threads/checkpoints && find . -name '*.safetensors'); do "
                                    "cmp threads/checkpoints/$file processes/checkpoints/$file || exit 1; done");
  EXPECT_EQ(values.code, 0) << values.out << values.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, ProcessRows,
    ::testing::Values(
        Way{"Ep2", 2, "--set moe.dispatcher=peer --set parallel.ep=2"},
        Way{"Ep2Tp2", 4, "--set moe.dispatcher=peer --set parallel.ep=2 --set parallel.tp=2"},
        Way{"Ep4InTwoParts", 4, "--set moe.dispatcher=peer --set parallel.ep=4 --set moe.overlap=true"},
        Way{"FewRows", 2,
            "--set moe.dispatcher=peer --set parallel.ep=2 --set moe.rank_capacity_factor=1 --set moe.overflow=rerun"},
        Way{"FromGraphs", 2, "--set moe.dispatcher=peer --set parallel.ep=2 --set graphs.mode=iteration"},
        Way{"Echo", 4,
            "--set moe.echo.backend=peer --set moe.echo.slots=2 --set moe.echo.min_pairs=0 --set parallel.ep=2"},
        Way{"EchoEp4", 4,
            "--set moe.echo.backend=peer --set moe.echo.slots=1 --set moe.echo.min_pairs=0 --set parallel.ep=4"},
        Way{"EchoBySizes", 4,
            "--set moe.echo.backend=host_sized --set moe.echo.slots=2 --set moe.echo.min_pairs=0 --set parallel.ep=4"},
        Way{"EchoSentAgain", 2,
            "--set moe.dispatcher=all_to_all --set moe.echo.slots=2 --set moe.echo.min_pairs=0 --set parallel.ep=2 "
            "--set moe.echo.weights=redispatch"},
        Way{"EchoOfSlices", 4,
            "--set moe.echo.slots=2 --set moe.echo.min_pairs=0 --set parallel.ep=2 --set parallel.tp=2 --set "
            "parallel.etp=2 --set moe.echo.overlap=false --set moe.echo.backend=collective"}),
    [](const auto& each) { return std::string(each.param.name); });

class RowsOfProcesses : public ProcessRows {};

// `unshare` gives each process a host of its own, by the name.
TEST_F(RowsOfProcesses, OfSeveralHostsAreSentAndNotRead) {
  if (run_shell("unshare --uts hostname other").code != 0) GTEST_SKIP() << "only root may give processes a host name";
  std::ofstream(dir_ / "apart.sh") << "hostname host$OMPI_COMM_WORLD_RANK\nexec \"$@\"\n";
  const auto apart = [&](const std::string& settings, const std::string& name = "apart") {
    return run_shell(mpirun(2, "unshare --uts bash " + out("apart.sh") + " " +
                                   train_process(name, experts("--set parallel.ep=2 " + settings))));
  };
  const Finished peer = apart("--set moe.dispatcher=peer");
  EXPECT_EQ(peer.code, 64) << peer.err;
  EXPECT_THAT(peer.err,
              HasSubstr("moe.dispatcher = peer: group etp-ep has 2 ranks: must be at most 8, all on one host, "
                        "which share memory; use moe.dispatcher = auto or all_to_all"));
  const Finished echo = apart("--set moe.echo.slots=1 --set moe.echo.backend=peer");
  EXPECT_EQ(echo.code, 64) << echo.err;
  EXPECT_THAT(echo.err, HasSubstr("moe.echo.backend = peer: group etp-ep has ranks that share no memory (on several "
                                  "hosts, or in several containers), which cannot read each other's weights; use"));
  const Finished clones = apart("--set moe.echo.slots=2 --set moe.echo.min_pairs=0", "clones");
  ASSERT_EQ(clones.code, 0) << clones.err;
  const std::string with_clones = "--set parallel.ep=2 --set moe.echo.slots=2 --set moe.echo.min_pairs=0";
  EXPECT_EQ(digest_of(clones), digest_of(run_shell(train("with_clones", experts(with_clones)))));
  const Finished sent = apart("");
  ASSERT_EQ(sent.code, 0) << sent.err;
  ASSERT_EQ(run_shell(train("threads", experts("--set parallel.ep=2"))).code, 0);
  EXPECT_EQ(metrics("apart"), metrics("threads"));
}

// A file without a lock belongs to no living process. The job is killed as a whole, its ranks by SIGKILL.
TEST_F(RowsOfProcesses, OfAKilledJobLeaveNothing) {
  const std::string pids = out("pid.");
  std::ofstream(dir_ / "rank.sh") << "echo $$ >" << pids << "$OMPI_COMM_WORLD_RANK\nexec \"$@\"\n";
  const std::string forever = experts("--set moe.dispatcher=peer --set parallel.ep=2 --set train.steps=1000000 ") +
                              "--set train.eval_interval=0";
  const Finished killed =
      run_shell(mpirun(2, "bash " + out("rank.sh") + " " + train_process("run", forever)) + " >&2 & job=$!; " +
                support::wait_for_step(out("run"), 3) + "kill -9 $(cat " + pids + "*); wait $job; " +
                "for file in /dev/shm/megalith-shared-*; do [ -e $file ] && flock -n $file true && echo $file; done; "
                "exit 0");
  EXPECT_EQ(killed.out, "") << killed.err;
  EXPECT_GE(metrics("run").size(), 3u) << killed.err;
}

}  // namespace
}  // namespace megalith
