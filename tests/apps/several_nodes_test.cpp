// Two hosts under mpirun: network namespaces with addresses and host names of their own. Needs root and `ip`: skipped
// elsewhere. And share/slurm/train.sbatch with stand-ins for Slurm's commands.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "megalith/base/str.h"
#include "megalith/train/restart_policy.h"

#include "tests/apps/program.h"
#include "tests/test_data.h"

namespace megalith {
namespace {

using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;

class TwoHosts : public support::Program {
 protected:
  void SetUp() override {
#ifndef MEGALITH_WITH_MPI
    GTEST_SKIP() << "MPI is not built in";
#endif
    const std::string a = space("a"), b = space("b");
    const Finished made = run_shell(
        str("ip netns add ", a, " && ip netns add ", b, " && ip -n ", a, " link add eth type veth peer name eth netns ",
            b, " && ip -n ", a, " addr add 10.213.0.1/24 dev eth && ip -n ", b,
            " addr add 10.213.0.2/24 dev eth && ip -n ", a, " link set eth up && ip -n ", b,
            " link set eth up && ip -n ", a, " link set lo up && ip -n ", b, " link set lo up"));
    if (made.code != 0) GTEST_SKIP() << "cannot make network namespaces: " << made.err;
    write_all(dir_ / "hostfile", "10.213.0.1 slots=2\n10.213.0.2 slots=2\n");
    // In place of ssh.
    write_all(dir_ / "enter", str("#!/usr/bin/env bash\nhost=$1; shift\n[ $host = 10.213.0.1 ] && set -- ", a,
                                  " node1 \"$*\" || set -- ", b, " node2 \"$*\"\n",
                                  "exec ip netns exec $1 unshare --uts bash -c \"hostname $2; $3\"\n"));
    // OUT of the second host is a folder of its own.
    write_all(dir_ / "apart",
              str("#!/usr/bin/env bash\n[ $(hostname) = node2 ] || exec \"$@\"\n",
                  "exec unshare --mount bash -c 'mount -t tmpfs none ", out("alone"), "; exec \"$@\"' - \"$@\"\n"));
    run_shell(str("mkdir ", out("alone"), "; chmod +x ", out("enter"), " ", out("apart")));
  }
  void TearDown() override { run_shell(str("ip netns del ", space("a"), "; ip netns del ", space("b"))); }

  static std::string space(const char* host) { return str("megalith-", ::getpid(), "-", host); }
  std::string on_hosts(const std::string& command) const {
    return str("ASAN_OPTIONS=detect_leaks=0 ", out("enter"),
               " 10.213.0.1 timeout 250 mpirun --allow-run-as-root --mca "
               "plm_rsh_agent ",
               out("enter"), " --hostfile ", out("hostfile"),
               " --bind-to none --mca btl_tcp_if_include "
               "10.213.0.0/24 --mca oob_tcp_if_include 10.213.0.0/24 --mca btl_vader_single_copy_mechanism none -np 4 ",
               command);
  }
  /// Bytes that the first host has sent to the second.
  static long sent() {
    return std::stol(run_shell(str("ip netns exec ", space("a"), " cat /sys/class/net/eth/statistics/tx_bytes")).out);
  }
};

TEST_F(TwoHosts, TrainWithTheBitsOfRankThreads) {
  const std::string grid = "--set parallel.tp=2 --set parallel.pp=2";
  const long before = sent();
  const Finished hosts = run_shell(on_hosts(train_process("hosts", grid)));
  ASSERT_EQ(hosts.code, 0) << hosts.err;
  const Finished threads = run_shell(train("threads", grid));
  ASSERT_EQ(threads.code, 0) << threads.err;
  EXPECT_EQ(metrics("hosts"), metrics("threads"));
  EXPECT_GT(sent() - before, 8 * 8 * 16 * 20 * 4) << "the activations of 8 steps went through the network";
}

TEST_F(TwoHosts, RefuseFoldersThatTheyDoNotShare) {
  const Finished got = run_shell(on_hosts(str(out("apart"), " ", train_process("alone/out"))) + " 2>&1");
  EXPECT_EQ(got.code, 64) << got.out;
  EXPECT_THAT(got.out, HasSubstr("error: --out = " + out("alone/out") + ": rank 2 on node2 does not see "));
}

/// share/slurm/train.sbatch where `srun` ends with `code`: what it called, in calls.txt.
class SlurmScript : public ::testing::Test {
 protected:
  Finished run(int code, const std::string& arguments, const std::string& environment = "") {
    write_all(dir_ / "srun", str("#!/bin/sh\necho srun \"$@\" >>", calls(), "\nexit ", code, "\n"));
    write_all(dir_ / "scontrol", str("#!/bin/sh\necho scontrol \"$@\" >>", calls(), "\n"));
    run_shell(str("chmod +x ", (dir_ / "srun").string(), " ", (dir_ / "scontrol").string(), "; ln -sf ",
                  support::program(), " ", (dir_ / "megalith").string(), "; : >", calls()));
    return run_shell(str("PATH=", dir_.path().string(), ":$PATH SLURM_JOB_ID=17 ", environment, " bash '",
                         MEGALITH_TEST_DATA, "/../../share/slurm/train.sbatch' ", arguments));
  }
  std::string calls() const { return (dir_ / "calls.txt").string(); }
  TempDir dir_;
};

TEST_F(SlurmScript, StartsOneTaskPerRankAndResumes) {
  EXPECT_EQ(run(0, "r.toml /shared/out --set parallel.tp=8", "SLURM_NTASKS_PER_NODE=8").code, 0);
  EXPECT_EQ(read_all(calls()),
            "srun --mpi=pmix --kill-on-bad-exit=0 --wait=60 megalith train r.toml --out /shared/out --resume=auto "
            "--set device.ranks_per_node=8 --set parallel.tp=8\n");
}

// The same exit codes as `megalith run`, for all that a process can have.
TEST_F(SlurmScript, QueuesAgainWhatARestartMends) {
  for (int code = 0; code < 160; ++code) {
    const bool is_mended = train::is_mended_by_restart(code);
    if (!is_mended && code % 8 > 2) continue;  // a sample of the others, with 0, 64, 65, 66, 73 and 130
    SCOPED_TRACE(code);
    const Finished got = run(code, "r.toml out");
    EXPECT_EQ(got.code, code);
    EXPECT_EQ(read_all(calls()).find("\nscontrol requeue 17\n") != std::string::npos, is_mended);
    EXPECT_EQ(got.err.find("; the job is queued again\n") != std::string::npos, is_mended) << got.err;
    EXPECT_EQ(got.err.find("; the job is not queued again\n") != std::string::npos, !is_mended && code != 0) << got.err;
  }
  EXPECT_THAT(run(74, "r.toml out").err, HasSubstr("exit code 74 (disk or memory): a restart may succeed; the job"));
  EXPECT_THAT(run(73, "r.toml out").err,
              HasSubstr("exit code 73 (numbers that are not finite): a restart would end alike; the job is not"));
  const Finished without = run(72, "r.toml out", "MEGALITH=/nowhere/megalith");
  EXPECT_EQ(without.code, 72);
  EXPECT_THAT(without.err, HasSubstr("exit code 72; the job is not queued again"));
  const Finished often = run(75, "r.toml out", "SLURM_RESTART_COUNT=3 MEGALITH_MAX_RESTARTS=3");
  EXPECT_THAT(often.err, HasSubstr("exit code 75 after 3 restarts: not restarted again"));
  EXPECT_THAT(read_all(calls()), ::testing::Not(HasSubstr("scontrol")));
  EXPECT_EQ(run(0, "r.toml").code, 64);
}

}  // namespace
}  // namespace megalith
