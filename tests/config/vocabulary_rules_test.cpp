#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/config/run_plan.h"

#include "tests/config/small_recipe.h"

// model.vocab_size: its default, and the warning of one that is too large.
namespace megalith::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kOwn = "data.tokenizer=bpe";

RunPlan planned(std::vector<std::string> settings, const CountIds& count_ids = nullptr) {
  return resolve(parse_recipe(kSmall, "r.toml", settings), 0, count_ids);
}

CountIds ids(Index count) {
  return [count](const std::string&, const std::string&) { return count; };
}

const CountIds kFails = [](const std::string&, const std::string&) -> Index {
  throw InputError("[/cluster/vocab.txt] is missing");
};

TEST(VocabularySize, IsTheNumberOfTheTokenizersIds) {
  std::string name, folder;
  const CountIds count_ids = [&](const std::string& tokenizer, const std::string& vocab_dir) -> Index {
    name = tokenizer;
    folder = vocab_dir;
    return 4321;
  };
  const RunPlan plan = planned({kOwn, "data.vocab_dir=own", "parallel.tp=2"}, count_ids);
  EXPECT_EQ(plan.model.vocab_size, 4321);
  EXPECT_EQ(plan.model.padded_vocab_size, 4352) << "128 * tp";
  EXPECT_EQ(name, "bpe");
  EXPECT_EQ(folder, "own");
  EXPECT_EQ(plan.as_config().model.vocab_size, 4321) << "it is written out";
  planned({"data.tokenizer=bert-uncased"}, count_ids);
  EXPECT_EQ(name, "bert-uncased");
  EXPECT_EQ(folder, "") << "what comes with the program";
  EXPECT_EQ(planned({"data.tokenizer=gpt2", "data.vocab_dir=own"}, count_ids).model.vocab_size, 4321);
}

TEST(VocabularySize, OfBytesAndOfGpt2NeedsNoFile) {
  EXPECT_EQ(planned({}, kFails).model.vocab_size, 256);
  const RunPlan gpt2 = planned({"data.tokenizer=gpt2"}, kFails);
  EXPECT_EQ(gpt2.model.vocab_size, 50257);
  EXPECT_EQ(gpt2.model.padded_vocab_size, 50304);
}

TEST(VocabularySize, OfTheRecipeAndOfThePresetStays) {
  EXPECT_EQ(planned({kOwn, "model.vocab_size=5000"}, kFails).model.vocab_size, 5000) << "no file is needed";
  EXPECT_EQ(planned({kOwn, "model.vocab_size=5000"}, ids(4900)).model.vocab_size, 5000);
  const std::vector<std::string> settings = {"train.steps=1", "data.train=x", kOwn, "model.preset=gpt2-124m"};
  EXPECT_EQ(resolve(parse_recipe("", "r.toml", settings), 0, ids(50000)).model.vocab_size, 50257);
}

TEST(VocabularySize, BelowItsTokenizersIsRefused) {
  const auto problem = [](std::vector<std::string> settings, const CountIds& count_ids) -> std::string {
    try {
      planned(settings, count_ids);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem({kOwn, "model.vocab_size=999"}, ids(1000)),
            "r.toml: 1 problem\n  model.vocab_size = 999: must be at least 1000, the ids of data.tokenizer = bpe");
  EXPECT_EQ(problem({kOwn, "model.vocab_size=1000"}, ids(1000)), "");
  EXPECT_EQ(problem({kOwn, "model.vocab_size=999"}, kFails), "") << "they are not known";
  EXPECT_EQ(problem({"model.vocab_size=255"}, ids(1000)),
            "r.toml: 1 problem\n  model.vocab_size = 255: must be at least 256, the ids of data.tokenizer = byte");
  EXPECT_EQ(problem({"model.vocab_size=255"}, nullptr), "") << "no text is read";
}

TEST(VocabularySize, AboveItsTokenizersByMoreThanAFifthCausesAWarning) {
  const auto warnings = [](const char* vocab_size, const CountIds& count_ids) {
    return planned({kOwn, vocab_size}, count_ids).warnings();
  };
  EXPECT_THAT(warnings("model.vocab_size=1200", ids(1000)), IsEmpty());
  EXPECT_THAT(warnings("model.vocab_size=1201", ids(1000)),
              ElementsAre("model.vocab_size = 1201: data.tokenizer = bpe has 1000 ids; the other 201 take memory and "
                          "time, and stand for no text"));
  EXPECT_THAT(warnings("model.vocab_size=1201", kFails), IsEmpty()) << "it is not known";
  EXPECT_THAT(planned({"model.vocab_size=50257"}).warnings(), ElementsAre(HasSubstr("data.tokenizer = byte has 256")));
}

TEST(VocabularySize, ThatCannotBeReadNamesTheFileAndTheKey) {
  const auto error_of = [](std::vector<std::string> settings, const CountIds& count_ids) -> std::string {
    settings.push_back(kOwn);
    try {
      planned(settings, count_ids);
    } catch (const Error& error) {
      return str(static_cast<int>(error.code()), ' ', error.what());
    }
    return "";
  };
  const std::string unset =
      "model.vocab_size is not set, and its default, the number of ids of data.tokenizer = bpe, is not known; give it, "
      "or name the files by data.vocab_dir";
  EXPECT_EQ(error_of({}, kFails), "65 r.toml: " + unset + ": [/cluster/vocab.txt] is missing");
  EXPECT_EQ(error_of({}, [](const auto&, const auto&) -> Index { throw IoError("[/cluster] cannot be read"); }),
            "74 r.toml: " + unset + ": [/cluster] cannot be read");
  EXPECT_EQ(error_of({}, [](const auto&, const auto&) -> Index { throw ConfigError("vocab_dir is not set"); }),
            "64 r.toml: 1 problem\n  " + unset + ": vocab_dir is not set");
  EXPECT_EQ(error_of({}, nullptr), "64 r.toml: 1 problem\n  " + unset);
  // With other mistakes it is one of them, and causes no more.
  EXPECT_EQ(error_of({"train.micro_batch=0"}, kFails),
            "64 r.toml: 2 problems\n  train.micro_batch = 0: must be at least 1\n  " + unset +
                ": [/cluster/vocab.txt] is missing");
}

}  // namespace
}  // namespace megalith::config
