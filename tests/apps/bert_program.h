#pragma once
#include <string>
#include <vector>

#include "tests/apps/program.h"

namespace megalith::support {

/// A folder with documents of sentences, and a recipe of a small BERT on them.
class BertProgram : public Program {
 protected:
  BertProgram() {
    write_stories("stories.jsonl", 0, 40);
    std::ofstream(dir_ / "bert.toml")
        << "[model]\nfamily = \"bert\"\nnum_layers = 2\nhidden_size = 16\nnum_heads = 2\nseq_len = 24\n"
           "[train]\nsteps = 6\nglobal_batch = 8\nmicro_batch = 2\neval_interval = 3\neval_batches = 0\n"
           "[optimizer]\nlr = 3e-3\nwarmup_steps = 2\n"
           "[data]\ntokenizer = \"bert-uncased\"\ntrain = \""
        << (dir_ / "stories").string() << "\"\nsplit = \"0.8,0.2\"\n";
  }
  void write_stories(const std::string& name, int begin, int end) const {
    std::ofstream text(dir_ / name);
    for (int i = begin; i < end; ++i)
      text << "{\"text\": \"The cat number " << i << " sat on a mat. It saw " << i * 3 % 7
           << " birds. They flew over the house. The cat went home.\"}\n";
  }
  Finished build_sentences(const std::string& name = "stories") const {
    return run_shell("megalith data build --sentences --tokenizer bert-uncased --input " + out(name + ".jsonl") +
                     " --output " + out(name));
  }
  Finished train_bert(const std::string& name, const std::string& more = "") const {
    return run_shell("megalith train " + out("bert.toml") + " --out " + out(name) + " " + more);
  }
};

}  // namespace megalith::support
