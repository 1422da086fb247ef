#include "megalith/config/keys.h"

#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

RunPlan plan_of(std::vector<std::string> settings = {}) {
  return resolve(parse_recipe(R"(
[model]
num_layers = 4
hidden_size = 64
num_heads = 4
[train]
steps = 10
[data]
tokenizer = "byte"
train = "corpus.txt"
)",
                              "r.toml", settings));
}

/// The recipe of a checkpoint that was saved under these settings.
RunConfig saved_by(std::vector<std::string> settings = {}) {
  return parse_recipe(to_toml(plan_of(std::move(settings)).as_config()), "checkpoint's recipe");
}

// A row lists name, members, default, bounds, rule on resume, ...: without the rule there is no such row.
template <class Row>
concept HasRuleOnly = requires {
  Row{.name = "a.b", .resume = OnResume::may_change};
};
template <class Row>
concept NeedsNoRule = requires {
  Row{.name = "a.b"};
};
static_assert(HasRuleOnly<Key> && !NeedsNoRule<Key>, "a key without a rule on resume must not compile");

TEST(Keys, EachHasANameAMemberAndAMeaningOfItsOwn) {
  RunConfig config;
  std::set<std::string_view> names, meanings;
  std::set<const void*> members;
  for (const Key& key : keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_EQ(std::ranges::count(key.name, '.'), key.name.starts_with("moe.echo.") ? 2 : 1) << key.name;
    const void* const member =
        std::visit([](const auto* value) -> const void* { return value; }, key.members.asked(config));
    EXPECT_TRUE(members.insert(member).second) << key.name << " shares its member with another key";
    EXPECT_FALSE(key.meaning.empty()) << key.name;
    EXPECT_NE(key.fallback.literal.empty(), key.fallback.words.empty()) << key.name;
    EXPECT_EQ(find_key(key.name), &key);
  }
  EXPECT_EQ(find_key("model.nosuch"), nullptr);
}

TEST(Keys, LiteralDefaultsAreLegalAndThoseOfAPlan) {
  RunConfig defaults;
  fill_defaults(defaults);
  RunConfig planned = RunPlan().as_config();
  for (const Key& key : keys()) {
    Problems problems;
    BrokenKeys broken;
    check_bounds(key, defaults, broken, problems);
    EXPECT_THAT(problems.lines(), IsEmpty()) << key.name;
    if (key.fallback.literal.empty() || key.members.get == nullptr) continue;
    EXPECT_EQ(value_text(key.members.asked(planned)), value_text(key.members.asked(defaults))) << key.name;
  }
}

TEST(ResumeChanges, NothingChangedIsNothingToSay) {
  const ResumeChanges none = resume_changes(saved_by(), plan_of());
  EXPECT_THAT(none.refused, IsEmpty());
  EXPECT_THAT(none.warned, IsEmpty());
}

TEST(ResumeChanges, EveryKeyIsTreatedByItsRule) {
  const ResumeChanges changes = resume_changes(
      saved_by(),
      plan_of({"train.seed=5", "model.num_heads=2", "data.split=0.9", "optimizer.lr=0.5", "optimizer.min_lr=0.0001",
               "train.steps=20", "optimizer.decay_steps=10", "parallel.tp=2", "checkpoint.keep=7"}));
  EXPECT_THAT(changes.refused, ElementsAre("model.num_heads = 2: the checkpoint was trained with 4",
                                           "train.seed = 5: the checkpoint was trained with 1234",
                                           "data.split = 0.9: the checkpoint was trained with unset"));
  EXPECT_THAT(changes.warned, ElementsAre("optimizer.lr = 0.5: the checkpoint was trained with 0.001; results differ "
                                          "from an uninterrupted run"));
}

TEST(ResumeChanges, SomeChangesMatterToSomePlansOnly) {
  const std::string kernels = "parallel.transfers=kernels", cuda = "device.type=cuda", bf16 = "train.precision=bf16";
  EXPECT_THAT(resume_changes(saved_by(), plan_of({kernels})).warned, IsEmpty());
  EXPECT_THAT(resume_changes(saved_by({cuda}), plan_of({cuda, kernels})).warned, IsEmpty());
  EXPECT_THAT(resume_changes(saved_by({cuda, "parallel.tp=2"}), plan_of({cuda, "parallel.tp=2", kernels})).warned,
              ElementsAre("parallel.transfers = kernels: the checkpoint was trained with copy_engines; results differ "
                          "from an uninterrupted run"));
  const std::string fp16 = "train.precision=fp16";
  EXPECT_THAT(resume_changes(saved_by({fp16}), plan_of({fp16, "train.loss_scale=8"})).warned,
              ElementsAre("train.loss_scale = 8: the checkpoint was trained with 65536; the scale that the checkpoint "
                          "has goes on"));
}

TEST(ResumeChanges, MomentsOfAnotherTypeAreConverted) {
  const std::string bf16 = "optimizer.moments=bf16";
  EXPECT_THAT(resume_changes(saved_by(), plan_of({bf16})).warned,
              ElementsAre("optimizer.moments = bf16: the checkpoint was trained with f32; its moments are converted"));
  EXPECT_THAT(resume_changes(saved_by({bf16}), plan_of({bf16})).warned, IsEmpty());
}

// GELU recomputed from rounded numbers has other gradients: with and without it a run differs, in 16 bits only.
TEST(ResumeChanges, RecomputedGeluWarnsInSixteenBits) {
  const std::string bf16 = "train.precision=bf16", selective = "recompute.mode=selective",
                    gelu = "recompute.modules=[\"gelu\"]", norms = "recompute.modules=[\"norms\"]",
                    both = "recompute.modules=[\"gelu\", \"norms\"]";
  const std::string differ = "; gradients of gelu differ by rounding errors from an uninterrupted run";
  EXPECT_THAT(resume_changes(saved_by({bf16}), plan_of({bf16, selective, gelu})).warned,
              ElementsAre("recompute.modules = [gelu]: the checkpoint was trained with []" + differ));
  EXPECT_THAT(resume_changes(saved_by({bf16, selective, gelu}), plan_of({bf16})).warned,
              ElementsAre("recompute.modules = []: the checkpoint was trained with [gelu]" + differ));
  EXPECT_THAT(resume_changes(saved_by({bf16, selective, gelu}), plan_of({bf16, selective, both})).warned, IsEmpty());
  EXPECT_THAT(resume_changes(saved_by({bf16}), plan_of({bf16, selective, norms})).warned, IsEmpty());
  EXPECT_THAT(resume_changes(saved_by({bf16}), plan_of({bf16, "recompute.mode=full"})).warned, IsEmpty());
  EXPECT_THAT(resume_changes(saved_by(), plan_of({selective, gelu})).warned, IsEmpty());
}

// Saved: lr 0.001 to step 80, then on a line to 0.0001 at step 100.
TEST(ResumeChanges, AWsdWarnsOnceIfItsDecayHadBegun) {
  const auto of = [](const std::string& steps, const std::string& decay) {
    return std::vector<std::string>{"optimizer.decay=wsd", "optimizer.lr=0.001", "optimizer.min_lr=0.0001",
                                    "train.steps=" + steps, "optimizer.decay_steps=" + decay};
  };
  const RunConfig saved = saved_by(of("100", "20"));
  const auto jump = [&](const std::string& steps, const std::string& decay, Index step) {
    return wsd_change(saved, plan_of(of(steps, decay)), step, step);
  };
  EXPECT_THAT(resume_changes(saved, plan_of(of("200", "50"))).warned, IsEmpty()) << "what matters depends on the step";
  EXPECT_EQ(jump("100", "20", 90), "");
  EXPECT_EQ(jump("200", "50", 80), "") << "the stable phase goes on";
  EXPECT_EQ(jump("60", "10", 50), "") << "and may end earlier";
  EXPECT_EQ(jump("90", "20", 95), "") << "nothing is left to train";
  EXPECT_EQ(jump("200", "50", 90),
            "train.steps = 200, optimizer.decay_steps = 50: the checkpoint of step 90 was trained with 100 and 20, a "
            "decay after step 80; it goes on with a decay after step 150, so the learning rate jumps from 0.00055 to "
            "0.001 at step 91; a checkpoint of step 80 or before has no jump");
  EXPECT_THAT(jump("100", "60", 70),
              ::testing::HasSubstr("the learning rate jumps from 0.001 to 0.000535 at step 71; a "
                                   "checkpoint of step 40 or before has no jump"));
  EXPECT_EQ(wsd_change(saved, plan_of(of("200", "50")), 90, 75), "") << "fp16 skipped steps, which do not count";
  EXPECT_THAT(resume_changes(saved_by({"optimizer.decay=linear"}), plan_of(of("100", "20"))).warned,
              ::testing::Contains(::testing::HasSubstr("optimizer.decay = wsd")));
}

// A version that has a key more resumes what an older one saved: there the key did what its default does.
TEST(ResumeChanges, OfAKeyThatTheCheckpointDoesNotHaveTheDefaultCounts) {
  RunConfig older = saved_by();
  older.train.seed.reset();
  older.model.dropout.reset();
  EXPECT_THAT(resume_changes(older, plan_of()).refused, IsEmpty());
  EXPECT_THAT(resume_changes(older, plan_of({"model.attention_dropout=0.1"})).warned, IsEmpty());
  EXPECT_THAT(resume_changes(older, plan_of({"train.seed=2"})).refused,
              ElementsAre("train.seed = 2: the checkpoint was trained with 1234"));
}

TEST(ResumeChanges, OfAKeyThatOneRecipeLacksNameItsUsualValue) {
  EXPECT_THAT(resume_changes(saved_by(), plan_of({"optimizer.type=muon"})).refused,
              ::testing::Contains("optimizer.type = muon: the checkpoint was trained with adamw"));
  EXPECT_THAT(resume_changes(saved_by({"optimizer.type=muon"}), plan_of()).refused,
              ::testing::Contains("optimizer.type = adamw: the checkpoint was trained with muon"));
}

TEST(IdentityOf, HasTheKeysThatMustMatch) {
  std::vector<std::string> names;
  for (const auto& [key, value] : identity_of(plan_of())) names.emplace_back(key);
  EXPECT_THAT(names, ElementsAre("model.preset", "model.family", "model.num_layers", "model.hidden_size",
                                 "model.num_heads", "model.ffn_hidden_size", "model.seq_len", "model.vocab_size",
                                 "train.seed", "train.precision", "data.tokenizer", "data.split"));
}

TEST(Keys, ProcessesMayDifferInPathsAndThreadsOnly) {
  std::vector<std::string_view> names;
  for (const Key& key : keys()) {
    if (key.ranks_may == RanksMay::differ) names.push_back(key.name);
  }
  EXPECT_THAT(names, ElementsAre("task.init", "moe.replay", "train.init", "eval.tasks", "data.vocab_dir", "data.train",
                                 "data.valid", "data.test", "checkpoint.dir", "device.threads"));
}

}  // namespace
}  // namespace megalith::config
