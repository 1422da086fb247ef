#pragma once
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/apps/program.h"

namespace megalith::support {

/// A small BERT that is pretrained, and recipes that fine-tune it, or a model from the seed.
class TaskProgram : public Program {
 protected:
  TaskProgram() {
    std::ofstream text(dir_ / "stories.jsonl");
    for (int i = 0; i < 12; ++i)
      text << "{\"text\": \"The cat number " << i << " sat on a mat. It saw " << i * 3 % 7 << " birds. They flew.\"}\n";
    std::ofstream(dir_ / "bert.toml")
        << "[model]\nfamily = \"bert\"\nnum_layers = 2\nhidden_size = 16\nnum_heads = 2\nseq_len = 24\n"
           "[train]\nsteps = 1\nglobal_batch = 4\n[data]\ntokenizer = \"bert-uncased\"\ntrain = \""
        << (dir_ / "stories.jsonl").string() << "\"\n";
    write_all(dir_ / "train.tsv", pairs(22));
    write_all(dir_ / "dev.tsv", pairs(9));
    std::ofstream(dir_ / "mnli.toml") << "[task]\nname = \"mnli\"\ninit = \"" << out("bert")
                                      << "\"\nepochs = 2\n[model]\nseq_len = 16\n"
                                         "[train]\nglobal_batch = 8\nmicro_batch = 2\n[optimizer]\nlr = 5e-3\n"
                                         "[data]\ntrain = \""
                                      << (dir_ / "train.tsv").string() << "\"\nvalid = \""
                                      << (dir_ / "dev.tsv").string() << "\"\n";
  }
  /// In which the class is that of the last word.
  static std::string pairs(int count) {
    const char* const labels[] = {"entailment", "neutral", "contradiction"};
    const char* const words[] = {"yes", "perhaps", "no"};
    std::string text = "index\tsentence1\tsentence2\tgold_label\n";
    for (int i = 0; i < count; ++i)
      text += std::to_string(i) + "\tthe " + std::to_string(i % 7) + " birds\tthey flew " + words[i % 3] + "\t" +
              labels[i % 3] + "\n";
    return text;
  }
  void pretrain(const std::string& name = "bert", const std::string& more = "") const {
    const Finished bert =
        run_shell("megalith train " + (dir_ / "bert.toml").string() + " --out " + out(name) + " " + more);
    ASSERT_EQ(bert.code, 0) << bert.err;
  }
  Finished finetune(const std::string& name, const std::string& more = "") const {
    return run_shell("megalith train " + (dir_ / "mnli.toml").string() + " --out " + out(name) + " " + more);
  }
  std::string set_file(const std::string& key, const std::string& file) const {
    return "--set " + key + "=" + (dir_ / file).string() + " ";
  }
  /// A line of metrics without what a clock measures.
  static std::string numbers_of(const std::string& line) { return line.substr(0, line.find(",\"step_time_s\"")); }
};

}  // namespace megalith::support
