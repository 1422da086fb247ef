#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/io/json_document.h"

#include "tests/apps/program.h"
#include "tests/test_data.h"

// The vocabulary that ships, and the one that a checkpoint holds.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::program;
using support::run_shell;
using ::testing::HasSubstr;

const std::string kSources = MEGALITH_TEST_DATA "/../..";

/// A run whose recipe names no vocabulary, or the one in `vocab_dir`.
class Gpt2Run : public Program {
 protected:
  std::string train_gpt2(const std::string& name, const std::string& more = "") const {
    return train(name, "--set data.tokenizer=gpt2 --set train.steps=2 --set train.eval_interval=0 " + more);
  }
  std::string generate(const std::string& name) const {
    return "cd / && megalith generate --checkpoint " + out(name) + " --prompt 'the line' --max-tokens 8 --seed 1";
  }
  std::string step(const std::string& name) const { return out(name) + "/checkpoints/step_00000002"; }
};

TEST_F(Gpt2Run, ACheckpointHoldsItsVocabulary) {
  const std::string copy = out("vocabulary");
  ASSERT_EQ(run_shell("cp -r " + kSources + "/share/gpt2 " + copy).code, 0);
  const Finished trained = run_shell(train_gpt2("a", "--set parallel.tp=2 --set data.vocab_dir=" + copy));
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Finished before = run_shell(generate("a"));
  ASSERT_EQ(before.code, 0) << before.err;
  ASSERT_EQ(run_shell("rm -r " + copy).code, 0);
  const Finished after = run_shell(generate("a"));
  EXPECT_EQ(after.code, 0) << after.err;
  EXPECT_EQ(after.out, before.out);
  EXPECT_EQ(after.out.substr(0, 8), "the line");
  // It serves as a vocabulary elsewhere, and is looked at as the rest of the checkpoint is.
  const Finished ids = run_shell("megalith tokenize --text 'Hello world' --vocab-dir " + step("a"));
  EXPECT_EQ(ids.out, "{\"text\":\"Hello world\",\"ids\":[15496,995]}\n") << ids.err;
  EXPECT_EQ(run_shell("megalith checkpoint verify " + out("a")).code, 0);
  ASSERT_EQ(run_shell("printf X | dd of=" + step("a") + "/merges.txt bs=1 seek=3000 conv=notrunc").code, 0);
  const Finished damaged = run_shell(generate("a"));
  EXPECT_NE(damaged.code, 0);
  EXPECT_THAT(damaged.err, HasSubstr("file merges.txt, bytes 0 to 456318: checksum"));
  EXPECT_THAT(run_shell("megalith checkpoint verify " + out("a")).err, HasSubstr("file merges.txt"));
}

TEST_F(Gpt2Run, ACheckpointWithoutVocabularyStillLoads) {
  ASSERT_EQ(run_shell(train_gpt2("a")).code, 0);
  const Finished want = run_shell(generate("a"));
  // Such a one as earlier versions saved: its manifest lists no plain files.
  std::ifstream file(step("a") + "/MANIFEST");
  nlohmann::ordered_json manifest = nlohmann::ordered_json::parse(file);
  std::erase_if(manifest["files"].get_ref<nlohmann::ordered_json::array_t&>(),
                [](const auto& entry) { return !entry["name"].template get<std::string>().ends_with(".safetensors"); });
  manifest["version"] = 1;
  manifest.erase("checksum");
  std::ofstream(step("a") + "/MANIFEST") << io::seal_json(manifest);
  ASSERT_EQ(run_shell("rm " + step("a") + "/vocab.json " + step("a") + "/merges.txt").code, 0);
  ASSERT_EQ(run_shell("megalith checkpoint verify " + out("a")).code, 0);
  const Finished got = run_shell(generate("a"));
  EXPECT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(got.out, want.out);
  const Finished longer = run_shell(train_gpt2("a", "--resume --set train.steps=3"));
  EXPECT_EQ(longer.code, 0) << longer.err;
}

TEST_F(Gpt2Run, ExportsTheTokenizerFromAnyFolder) {
  ASSERT_EQ(run_shell(train_gpt2("a")).code, 0);
  const Finished exported = run_shell("cd / && megalith checkpoint export-hf " + out("a") + " --out " + out("hf"));
  ASSERT_EQ(exported.code, 0) << exported.err;
  EXPECT_EQ(exported.err, "");
  EXPECT_EQ(run_shell("ls " + out("hf")).out,
            "config.json\nmerges.txt\nmodel.safetensors\ntokenizer_config.json\nvocab.json\n");
  EXPECT_EQ(run_shell("cmp " + kSources + "/share/gpt2/vocab.bpe " + out("hf") + "/merges.txt").code, 0);
  // An imported model brings its vocabulary.
  ASSERT_EQ(run_shell("megalith checkpoint import-hf " + out("hf") + " --out " + out("b")).code, 0);
  ASSERT_EQ(run_shell("rm -r " + out("hf")).code, 0);
  const Finished text = run_shell(generate("b"));
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.out, run_shell(generate("a")).out);
}

TEST_F(Program, ABytesModelExportsATokenizer) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 0);
  EXPECT_EQ(run_shell("ls " + out("hf")).out,
            "config.json\nmodel.safetensors\ntokenizer.json\ntokenizer_config.json\n");
}

/// A tokenizer of 300 ids of one's own.
class OwnTokenizer : public Program {
 protected:
  OwnTokenizer() {
    EXPECT_EQ(run_shell("megalith tokenizer train --type bpe --vocab-size 300 --input " + out("text.txt") +
                        " --output " + out("bpe"))
                  .code,
              0);
  }
  std::string of(const std::string& folder) const { return "--set data.tokenizer=bpe --set data.vocab_dir=" + folder; }
  std::string own() const { return of(out("bpe")) + " --set train.steps=2 --set train.eval_interval=0 "; }
  /// model.vocab_size in the recipe that a run has written.
  std::string written(const std::string& name) const {
    return run_shell("grep '^vocab_size' " + out(name) + "/recipe.toml").out;
  }
};

TEST_F(OwnTokenizer, GivesTheModelItsNumberOfIds) {
  const Finished printed = run_shell("megalith recipe " + recipe() + " " + own());
  EXPECT_THAT(printed.out, HasSubstr("\nvocab_size = 300\npadded_vocab_size = 384\n")) << printed.err;
  const Finished plan = run_shell("megalith plan " + recipe() + " " + own());
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.out, run_shell("megalith plan " + recipe() + " " + own() + "--set model.vocab_size=300").out);
  const Finished trained = run_shell(train("a", own() + "--ranks 2"));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(written("a"), "vocab_size = 300\n");
  const Finished bert = run_shell("megalith recipe " + recipe() + " --set data.tokenizer=bert-uncased");
  EXPECT_THAT(bert.out, HasSubstr("\nvocab_size = 30522\n")) << bert.err;
}

// A recipe of a cluster, planned elsewhere.
TEST_F(OwnTokenizer, ThatIsNotThereIsNamedWithTheKey) {
  for (const char* const command : {"plan ", "recipe ", "train "}) {
    const Finished refused = run_shell(std::string("megalith ") + command + recipe() + " " + of("/cluster/vocabulary"));
    EXPECT_EQ(refused.code, 65) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("model.vocab_size is not set, and its default, the number of ids of "
                                       "data.tokenizer = bpe, is not known; give it, or name the files by "
                                       "data.vocab_dir: "));
    EXPECT_THAT(refused.err, HasSubstr("/cluster/vocabulary/encoder.json"));
    EXPECT_EQ(refused.out, "");
  }
  const Finished plan =
      run_shell("megalith plan " + recipe() + " " + of("/cluster/vocabulary") + " --set model.vocab_size=300");
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.err, "");
}

// Until the default came from the tokenizer's files it was 50257.
TEST_F(OwnTokenizer, ARunWithTheFormerDefaultKeepsItsModel) {
  ASSERT_EQ(run_shell(train("a", own() + "--set model.vocab_size=50257")).code, 0);
  for (const char* const resume : {"--resume", "--resume=auto"}) {
    const Finished longer = run_shell(train("a", own() + resume + " --set train.steps=4"));
    ASSERT_EQ(longer.code, 0) << longer.err;
    EXPECT_THAT(longer.err, HasSubstr("model.vocab_size = 50257: data.tokenizer = bpe has 300 ids; the other 49957 "));
    EXPECT_EQ(written("a"), "vocab_size = 50257\n");
  }
  // What else is not the default is refused as before.
  ASSERT_EQ(run_shell(train("b", own() + "--set model.vocab_size=310")).code, 0);
  const Finished refused = run_shell(train("b", own() + "--resume --set train.steps=4"));
  EXPECT_EQ(refused.code, 66);
  EXPECT_THAT(refused.err, HasSubstr("model.vocab_size = 300: the checkpoint was trained with 310"));
}

TEST(ShippedVocabulary, IsFoundFromAnyFolder) {
  const Finished ids = run_shell("cd / && megalith tokenize --text 'Hello world'");
  EXPECT_EQ(ids.out, "{\"text\":\"Hello world\",\"ids\":[15496,995]}\n") << ids.err;
}

TEST(ShippedVocabulary, IsNamedWhereItIsMissing) {
  const TempDir dir;
  const Finished alone = run_shell("cp " + program() + " " + (dir / "megalith").string() + " && " +
                                   (dir / "megalith").string() + " tokenize --text a");
  EXPECT_EQ(alone.code, 64) << alone.err;
  EXPECT_THAT(alone.err, HasSubstr("data.vocab_dir is not set, and there is no share/megalith/gpt2 or share/gpt2"));
}

// What scripts/demo counts its sample's words with.
TEST(KnownWords, AreCountedAndTooFewAreAnError) {
  const TempDir dir;
  std::ofstream(dir / "text") << "It isn\xE2\x80\x99t A truth.\n";
  const auto count = [&](const std::string& sample, const std::string& least) {
    return run_shell("printf \"" + sample + "\" | " + kSources + "/scripts/known-words " + (dir / "text").string() +
                     least);
  };
  const Finished most = count("a truth, a Truth: it isn't new", "");
  EXPECT_EQ(most.out, "6 of 7 words occur in the training text, 86 %; others: new\n");
  EXPECT_EQ(most.code, 1) << "90 % are wanted";
  EXPECT_EQ(count("a truth, a Truth: it isn't new", " 85").code, 0);
  EXPECT_EQ(count("it", "").out, "1 of 1 words occur in the training text, 100 %\n");
  EXPECT_EQ(count("", "").code, 1) << "no words are no sample";
}

TEST(ShippedVocabulary, IsFoundBesideTheProgramToo) {
  if (std::getenv("MEGALITH_PROGRAM") != nullptr) GTEST_SKIP() << "the program was built elsewhere";
  const TempDir dir;
  std::filesystem::copy_file(MEGALITH_PROGRAM, dir / "megalith");
  std::filesystem::create_directory(dir / "share");
  std::filesystem::create_directory_symlink(kSources + "/share/gpt2", dir / "share" / "gpt2");
  const Finished ids = run_shell((dir / "megalith").string() + " tokenize --text 'Hello world'");
  EXPECT_EQ(ids.out, "{\"text\":\"Hello world\",\"ids\":[15496,995]}\n") << ids.err;
}

// The first block of TOML in docs/recipe.md.
TEST(RecipeDocs, TheSmallestRecipeRuns) {
  const std::string text = read_all(kSources + "/docs/recipe.md");
  const std::size_t begin = text.find("```toml\n"), end = text.find("```", begin + 8);
  ASSERT_NE(end, std::string::npos);
  const TempDir dir;
  std::ofstream(dir / "smallest.toml") << text.substr(begin + 8, end - begin - 8);
  const Finished run = run_shell("cd " + kSources + " && megalith train " + (dir / "smallest.toml").string() +
                                 " --out " + (dir / "out").string());
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(support::metrics_of((dir / "out").string()).size(), 10u);
}

// What `cmake --install` makes can be moved, and needs nothing of the folder that it was built in.
TEST(Installed, APrefixRunsWhereverItLies) {
  if (std::getenv("MEGALITH_PROGRAM") != nullptr) GTEST_SKIP() << "the program was built elsewhere";
  const TempDir dir;
  const std::string first = (dir / "first").string(), prefix = (dir / "second").string();
  const std::string build = std::filesystem::path(MEGALITH_PROGRAM).parent_path().parent_path().string();
  const Finished installed = run_shell("cmake --install " + build + " --prefix " + first + " --strip");
  ASSERT_EQ(installed.code, 0) << installed.err;
  ASSERT_EQ(run_shell("mv " + first + " " + prefix).code, 0);
  const Finished ids = run_shell("cd / && " + prefix + "/bin/megalith tokenize --text 'Hello world'");
  EXPECT_EQ(ids.out, "{\"text\":\"Hello world\",\"ids\":[15496,995]}\n") << ids.err;
  const Finished trained =
      run_shell("cd " + prefix + "/share/megalith && ../../bin/megalith train recipes/shakespeare.toml " +
                "--set train.steps=1 --set data.split=0.99 --out " + (dir / "out").string());
  EXPECT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(run_shell("ls " + prefix + " " + prefix + "/share/doc/megalith/docs/recipe.md").code, 0);
}

}  // namespace
}  // namespace megalith
