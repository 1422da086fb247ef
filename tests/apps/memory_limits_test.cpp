#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/str.h"

#include "tests/apps/program.h"
#include "tests/support/sweep.h"

// The program where it may have little memory: `ulimit -v`, and few threads.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;
using support::sweep_stride;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class MemoryLimits : public Program {
 protected:
  std::vector<std::string> commands() const {
    const std::string text = out("text.txt"), fresh = out("fresh");
    return {train("fresh"),
            train("fresh", "--ranks 2"),
            "megalith eval " + out("a") + " --task loss --data " + text,
            "megalith generate --checkpoint " + out("a") + " --prompt the --max-tokens 4",
            "megalith plan " + recipe(),
            "megalith checkpoint verify " + out("a"),
            "megalith data clean --join-lines --input " + text + " --output " + fresh,
            "megalith data dedup --memory 16MiB --input " + text + " --output " + fresh,
            "megalith data overlap --train " + text + " --test " + text + " --output " + fresh,
            "megalith data build --tokenizer gpt2 --threads 3 --input " + text + " --output " + fresh + "/tokens",
            "megalith tokenizer train --type bpe --vocab-size 300 --input " + text + " --output " + fresh,
            "megalith tokenize " + text};
  }
  /// KiB of addresses with which the loader starts the program.
  int min_kib() const {
    int kib = 20'000;
    while (run_shell(str("ulimit -v ", kib, "; megalith --version")).code != 0) kib += 1000;
    return kib;
  }
};

// Without memory every command ends with one line and 74, or does its work: never by a signal.
TEST_F(MemoryLimits, EndIn74) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take terabytes of addresses";
#endif
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const int least = min_kib();
  int which = 0;
  for (const std::string& command : commands()) {
    std::set<int> codes;
    ++which;
    for (int kib = least + which * 137 % 1000; kib < least + 150'000; kib += 1500 * sweep_stride(8)) {
      const Finished run =
          run_shell("rm -rf " + out("fresh") + "; mkdir -p " + out("fresh") + str("; ulimit -v ", kib, "; ") + command);
      codes.insert(run.code);
      EXPECT_TRUE(run.code == 0 || run.code == 74) << "ulimit -v " << kib << "; " << command << '\n' << run.err;
      if (run.code != 74) continue;
      std::istringstream lines(run.err);
      int errors = 0;
      for (std::string line; std::getline(lines, line);) errors += line.starts_with("error: E74 ") ? 1 : 0;
      EXPECT_EQ(errors, 1) << "ulimit -v " << kib << "; " << command << '\n' << run.err;
    }
    EXPECT_TRUE(codes.contains(0)) << command;
  }
}

TEST_F(MemoryLimits, ALineOfATextIsRefusedBeforeItTakesMemory) {
  // 64 MB of one line, one word and line ends alone; as zeros and letters.
  ASSERT_EQ(run_shell(train("a")).code, 0);
  run_shell("head -c 64000000 /dev/zero | gzip > " + out("zeros.gz") +
            "; head -c 64000000 /dev/zero | tr '\\0' a | gzip > " + out("letters.gz") +
            "; { printf '{\"text\": \"'; head -c 64000000 /dev/zero | tr '\\0' a; echo '\"}'; } | gzip > " +
            out("line.jsonl.gz"));
  for (const char* name : {"zeros.gz", "letters.gz", "line.jsonl.gz"}) {
    const std::string file = out(name), fresh = out("fresh");
    for (const std::string& command :
         {"megalith data clean --input " + file + " --output " + fresh,
          "megalith data dedup --input " + file + " --output " + fresh,
          "megalith data overlap --train " + file + " --test " + out("text.txt") + " --output " + fresh,
          "megalith data overlap --test " + file + " --train " + out("text.txt") + " --output " + fresh,
          "megalith data build --tokenizer byte --input " + file + " --output " + fresh + "/t",
          "megalith data build --tokenizer gpt2 --input " + file + " --output " + fresh + "/t",
          "megalith tokenizer train --type bpe --vocab-size 300 --input " + file + " --output " + fresh,
          "megalith tokenizer train --type wordpiece --vocab-size 300 --input " + file + " --output " + fresh,
          "megalith eval " + out("a") + " --task loss --data " + file,
          "megalith eval " + out("a") + " --task wikitext --data " + file,
          "megalith eval " + out("a") + " --task lambada --data " + file, train("fresh", "--set data.train=" + file)}) {
      const Finished run = run_shell("rm -rf " + fresh + "; mkdir -p " + fresh + "; " + command);
      EXPECT_EQ(run.code, 65) << command << '\n' << run.err;
      // For byte tokens a zero ends a document, which comes first.
      EXPECT_THAT(run.err, AnyOf(HasSubstr("--max-line"), HasSubstr("byte 0 is token 0"))) << command;
    }
  }
}

}  // namespace
}  // namespace megalith
