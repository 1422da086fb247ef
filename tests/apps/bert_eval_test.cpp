#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/apps/bert_program.h"

// megalith eval and score of masked language models.
namespace megalith {
namespace {

using nlohmann::json;
using support::BertProgram;
using support::Finished;
using support::run_shell;
using ::testing::HasSubstr;

class BertEval : public BertProgram {
 protected:
  BertEval() { write_stories("valid.jsonl", 100, 130); }
  /// A run that evaluates valid.jsonl, which nothing is held out for.
  Finished train_with_valid(const std::string& name, const std::string& more = "") const {
    for (const char* const corpus : {"stories", "valid"}) {
      if (std::filesystem::exists(dir_ / (std::string(corpus) + ".idx"))) continue;
      if (const Finished built = build_sentences(corpus); built.code != 0) return built;
    }
    return train_bert(name, "--set data.split= --set data.valid=" + out("valid.jsonl") + " " + more);
  }
  std::string eval(const std::string& name, const std::string& data = "valid.jsonl") const {
    return "megalith eval " + out(name) + " --task loss --format json --data " + out(data) + " ";
  }
  Finished score(const std::string& name, const std::string& lines, const std::string& more = "") const {
    write_all(dir_ / "samples.jsonl", lines);
    return run_shell("megalith score " + out(name) + " --tokens " + out("samples.jsonl") + " " + more);
  }
};

json report_of(const Finished& finished) {
  EXPECT_EQ(finished.code, 0) << finished.err;
  return finished.code == 0 ? json::parse(finished.out) : json();
}

/// Every figure within a relative tolerance.
void expect_figures(const json& got, const json& want, double tolerance) {
  ASSERT_EQ(got.at("results").size(), want.at("results").size());
  for (const auto& [name, value] : want.at("results").items()) {
    const double a = got.at("results").at(name).get<double>(), b = value.get<double>();
    EXPECT_LE(std::abs(a - b), tolerance * std::abs(b)) << name << ": " << a << ", " << b;
  }
}

TEST_F(BertEval, GivesTheFiguresOfTheRunsOwnEvaluation) {
  for (const std::string order : {"sop", "none"}) {
    SCOPED_TRACE(order);
    const Finished run = train_with_valid(order, "--set bert.order=" + order + " --set train.seed=7");
    ASSERT_EQ(run.code, 0) << run.err;
    json want;
    for (const std::string& line : metrics(order))
      if (line.starts_with("{\"eval\":")) want = json::parse(line);
    // With the run's micro_batch GEMMs have the shapes that they had in the run, and sums the same bits.
    const json report = report_of(run_shell(eval(order) + "--batch 2"));
    const json& results = report.at("results");
    EXPECT_EQ(results.contains("order_loss"), order == "sop");
    for (const std::string& line : metrics(order)) {
      if (!line.starts_with("{\"step\":") && !line.starts_with("{\"eval\":")) continue;
      for (const char* const member : {"order_loss", "order_accuracy"})
        EXPECT_EQ(json::parse(line).contains(member), order == "sop") << line;
    }
    EXPECT_EQ(results.size(), order == "sop" ? 6U : 4U);
    for (const auto& [name, value] : results.items())
      EXPECT_NEAR(value.get<double>(), want.at(name).get<double>(), 1e-12 * value.get<double>()) << name;
    EXPECT_EQ(report.at("samples").at("seed"), 7);
    EXPECT_EQ(report.at("counts").at("documents"), 30);
    EXPECT_GT(report.at("counts").at("samples").get<int>(), 30);
    expect_figures(report_of(run_shell(eval(order, "valid") + "--batch 2")), report, 0);
    expect_figures(report_of(run_shell(eval(order))), report, 1e-6);
    const Finished text = run_shell("megalith eval " + out(order) + " --task loss --data " + out("valid.jsonl"));
    EXPECT_THAT(text.out, HasSubstr("  loss, protocol samples of epoch 0, window 24\n"));
    EXPECT_THAT(text.out, HasSubstr("order " + order + ", mask_fraction 0.15"));
    EXPECT_THAT(text.out, HasSubstr("\nmlm loss  "));
  }
}

/// The GEMMs of layers have the operands that they had in the run, and parameters are rounded from the same masters.
TEST_F(BertEval, InFp8GivesTheFiguresOfTheRunsOwnEvaluation) {
  const std::string wide = "--set train.precision=fp8 --set model.hidden_size=256 --set fp8.skip_layers=first ";
  const Finished run = train_with_valid("a", wide);
  ASSERT_EQ(run.code, 0) << run.err;
  json want;
  for (const std::string& line : metrics("a"))
    if (line.starts_with("{\"eval\":")) want = json::parse(line);
  const json report = report_of(run_shell(eval("a") + "--batch 2 --precision fp8")),
             in_bf16 = report_of(run_shell(eval("a") + "--batch 2 --precision bf16"));
  EXPECT_EQ(report.at("precision"), "fp8");
  for (const auto& [name, value] : report.at("results").items())
    EXPECT_NEAR(value.get<double>(), want.at(name).get<double>(), 1e-12 * value.get<double>()) << name;
  EXPECT_NE(in_bf16.at("results").at("loss"), report.at("results").at("loss"));
  expect_figures(in_bf16, report, 1e-2);
  for (const char* const grid : {"--set parallel.pp=2", "--ranks 2"})
    expect_figures(report_of(run_shell(eval("a") + "--precision fp8 " + grid)), report, 1e-6);
  const json on_two = report_of(run_shell(eval("a") + "--precision fp8 --set parallel.tp=2")),
             on_two_in_bf16 = report_of(run_shell(eval("a") + "--precision bf16 --set parallel.tp=2"));
  expect_figures(on_two, report, 2e-3);
  EXPECT_NE(on_two.at("results").at("loss"), on_two_in_bf16.at("results").at("loss"));
  ASSERT_EQ(train_with_valid("narrow").code, 0);
  const Finished cut = run_shell(eval("narrow") + "--precision fp8");
  EXPECT_EQ(cut.code, 64);
  EXPECT_THAT(cut.err, HasSubstr("blocks of 128, which no rank may cut"));
  const Finished gpu = run_shell(eval("a") + "--precision fp8 --device cuda");
  EXPECT_EQ(gpu.code, 64);
  EXPECT_THAT(gpu.err, HasSubstr("--precision = fp8: is for --device cpu"));
}

TEST_F(BertEval, GridsGiveTheSameFigures) {
  ASSERT_EQ(train_with_valid("a").code, 0);
  const json want = report_of(run_shell(eval("a") + "--precision fp64"));
  for (const char* const grid : {"--set parallel.tp=2 --set parallel.pp=2", "--ranks 2 --batch 3", "--batch 64"})
    expect_figures(report_of(run_shell(eval("a") + "--precision fp64 " + grid)), want, 1e-12);
#ifdef MEGALITH_WITH_MPI
  const Finished processes =
      run_shell(support::mpirun(2, support::program() + eval("a").substr(8) + "--precision fp64 --set parallel.tp=2"));
  expect_figures(report_of(processes), want, 1e-12);
#endif
}

TEST_F(BertEval, AnInterruptedEvaluationGoesOn) {
  ASSERT_EQ(train_with_valid("a").code, 0);
  const std::string command = eval("a") + "--per-example " + out("lines.jsonl");
  const json want = report_of(run_shell(command));
  const std::string whole = read_all(dir_ / "lines.jsonl");
  write_all(dir_ / "lines.jsonl", whole.substr(0, whole.size() / 2));
  const Finished resumed = run_shell(command + " --resume");
  EXPECT_THAT(resumed.err, HasSubstr("1 line was changed or cut"));
  const json report = report_of(resumed);
  expect_figures(report, want, 0);
  EXPECT_GT(report.at("resumed_examples").get<int>(), 5);
  const json complete = report_of(run_shell(command + " --resume"));
  EXPECT_EQ(complete.at("resumed_examples"), want.at("counts").at("samples"));
  EXPECT_EQ(complete.at("results"), report.at("results")) << "numbers read back as they were";
}

TEST_F(BertEval, RefusesWhatAMaskedModelHasNot) {
  ASSERT_EQ(train_with_valid("a").code, 0);
  const Finished wiki = run_shell(eval("a") + "--window 8 --stride 4");
  EXPECT_EQ(wiki.code, 64);
  EXPECT_THAT(wiki.err, HasSubstr("--window = 8: is for models that predict the next token"));
  EXPECT_THAT(wiki.err, HasSubstr("--stride = 4: is for models that predict the next token"));
  const Finished task = run_shell("megalith eval " + out("a") + " --task lambada --data " + out("valid.jsonl"));
  EXPECT_EQ(task.code, 64);
  EXPECT_THAT(task.err, HasSubstr("--task = lambada: is for models that predict the next token; model.family = bert "
                                  "takes --task loss"));
  write_all(dir_ / "single.jsonl", "{\"text\": \"One\"}\n{\"text\": \"Two\"}\n");
  const Finished single = run_shell(eval("a", "single.jsonl"));
  EXPECT_EQ(single.code, 65) << single.err;
  EXPECT_THAT(single.err, HasSubstr("no document has two sentences"));
}

constexpr const char* kShort =
    R"({"ids": [101, 1996, 103, 102], "types": [0, 0, 0, 0], "targets": [-1, -1, 4937, -1]})";
constexpr const char* kLong =
    R"({"ids": [101, 1996, 103, 2938, 102, 2009, 103, 102], "types": [0, 0, 0, 0, 0, 1, 1, 1],)"
    R"( "targets": [-1, -1, 4937, -1, -1, -1, 2387, -1], "note": "ignored"})";

TEST_F(BertEval, ScoresTargetsAndOrders) {
  ASSERT_EQ(train_with_valid("a").code, 0);
  const std::string both = std::string(kShort) + "\n\n" + kLong + "\n";
  const Finished scored = score("a", both);
  ASSERT_EQ(scored.code, 0) << scored.err;
  const json found = json::parse(scored.out);
  ASSERT_EQ(found.at("logprobs").size(), 2U);
  ASSERT_EQ(found.at("order").size(), 2U);
  const json& places = found.at("logprobs").at(1);
  ASSERT_EQ(places.size(), 8U);
  for (std::size_t i = 0; i < places.size(); ++i) EXPECT_EQ(places.at(i).is_null(), i != 2 && i != 6) << i;
  EXPECT_LT(places.at(2).get<double>(), 0);
  for (const json& order : found.at("order"))
    EXPECT_NEAR(std::exp(order.at(0).get<double>()) + std::exp(order.at(1).get<double>()), 1, 1e-12);
  const json alone = json::parse(score("a", kLong, "--precision fp64").out);
  const json fp64 = json::parse(score("a", both, "--precision fp64").out),
             grid = json::parse(score("a", both, "--precision fp64 --set parallel.tp=2 --set parallel.pp=2").out);
  EXPECT_EQ(alone.at("logprobs").at(0), fp64.at("logprobs").at(1)) << "padding and other samples change no bit";
  EXPECT_EQ(alone.at("order").at(0), fp64.at("order").at(1));
  EXPECT_NEAR(grid.at("order").at(1).at(0).get<double>(), fp64.at("order").at(1).at(0).get<double>(), 1e-12);
  EXPECT_NEAR(grid.at("logprobs").at(1).at(6).get<double>(), fp64.at("logprobs").at(1).at(6).get<double>(), 1e-12);
  EXPECT_NEAR(places.at(6).get<double>(), fp64.at("logprobs").at(1).at(6).get<double>(), 1e-4);
}

TEST_F(BertEval, ScoresWithoutAnOrder) {
  ASSERT_EQ(train_with_valid("none", "--set bert.order=none").code, 0);
  const Finished scored = score("none", kShort);
  ASSERT_EQ(scored.code, 0) << scored.err;
  const json found = json::parse(scored.out);
  EXPECT_FALSE(found.contains("order"));
  EXPECT_EQ(found.at("logprobs").size(), 1U);
}

TEST_F(BertEval, ScoreRefusesAllBadLinesAtOnce) {
  ASSERT_EQ(train_with_valid("a").code, 0);
  std::string long_ids = "1";
  for (int i = 0; i < 24; ++i) long_ids += ", 1";
  const std::string bad =
      "[[1, 2]]\n{\"ids\": [1]}\n" + std::string(kShort) +
      "\n{\"ids\": [30522], \"types\": [2], \"targets\": [-2]}\n"
      "{\"ids\": [1, 2], \"types\": [0], \"targets\": [-1, -1, -1]}\n"
      "{\"ids\": [" +
      long_ids + "], \"types\": [], \"targets\": []}\n{\"ids\": [1.5], \"types\": 7, \"targets\": [[1]]}\n{\"ids";
  const Finished refused = score("a", bad);
  EXPECT_EQ(refused.code, 65);
  EXPECT_EQ(refused.out, "");
  for (const char* const problem :
       {"samples.jsonl] 15 problems",
        "line 1: must be an object as {\"ids\":", "line 2, types: is missing; a line is {",
        "line 2, targets: is missing", "line 4, ids[0] = 30522: must be a whole number from 0 to 30521",
        "line 4, types[0] = 2: must be a whole number from 0 to 1",
        "line 4, targets[0] = -2: must be a whole number from -1 to 30521",
        "line 5, types: has 1 numbers: must have 2, one for each of ids", "line 5, targets: has 3 numbers: must have 2",
        "line 6, ids: has 25 numbers: must have 1 to 24, the model's seq_len", "line 7, ids[0] = 1.5: must be",
        "line 7, types: must be a list", "line 7, targets[0] = a list or an object: must be", "line 8"})
    EXPECT_THAT(refused.err, HasSubstr(problem));
  const Finished empty = score("a", "\n");
  EXPECT_EQ(empty.code, 65);
  EXPECT_THAT(empty.err, HasSubstr("holds no samples: must have lines as {\"ids\":"));
}

}  // namespace
}  // namespace megalith
