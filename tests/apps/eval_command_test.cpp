#include <algorithm>
#include <cmath>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

#include "tests/apps/program.h"

// megalith eval and score, on grids of threads and of processes.
namespace megalith {
namespace {

using support::Finished;
using support::Program;
using support::run_shell;
using ::testing::HasSubstr;

class EvalProgram : public Program {
 protected:
  EvalProgram() {
    std::ofstream wiki(dir_ / "wiki.tokens");
    wiki << " \n = Title = \n \n";
    for (int i = 0; i < 30; ++i) wiki << " the " << i << " @,@ 000 th line ( of a <unk> text ) , well @-@ known . \n";
    std::ofstream raw(dir_ / "wiki.raw");
    for (const char* const title : {"A", "B", "C"}) {
      raw << " = " << title << " = \n \n";
      for (int i = 0; i < 9; ++i) raw << " the " << i * 7 % 31 << " th line of a text that says little . \n";
    }
    std::ofstream lambada(dir_ / "lambada.jsonl");
    const char* const contexts[] = {"says", "that says", "at says", "the 7th line of a text that says"};
    for (int i = 0; i < 40; ++i)
      lambada << "{\"text\": \"" << contexts[i % 4] << ' ' << (i % 3 == 0 ? "me" : "little") << "\"}\n";
  }
  std::string eval(const std::string& name, const std::string& task) const {
    return "megalith eval " + out(name) + " --format json " + task;
  }
  std::string wikitext() const { return "--task wikitext --stride 4 --data " + out("wiki.tokens"); }
  std::string harness() const { return "--task wikitext --protocol harness --data " + out("wiki.raw"); }
  std::string lambada() const { return "--task lambada --data " + out("lambada.jsonl"); }
  std::string loss() const { return "--task loss --data " + out("text.txt"); }
  std::vector<std::string> tasks() const { return {wikitext(), harness(), lambada(), loss()}; }
};

nlohmann::json parsed(const Finished& finished) {
  EXPECT_EQ(finished.code, 0) << finished.err;
  return finished.code == 0 ? nlohmann::json::parse(finished.out) : nlohmann::json();
}

/// Every figure within a relative tolerance, and every count equal.
void expect_alike(const nlohmann::json& got, const nlohmann::json& want, double tolerance) {
  EXPECT_EQ(got.at("counts"), want.at("counts"));
  for (const auto& [name, value] : want.at("results").items()) {
    const double a = got.at("results").at(name).get<double>(), b = value.get<double>();
    if (name == "accuracy" || name.starts_with("correct")) {
      EXPECT_EQ(a, b) << name;
    } else {
      EXPECT_LE(std::abs(a - b), tolerance * std::abs(b)) << name << ": " << a << ", " << b;
    }
  }
}

constexpr const char* kGrids[] = {"--set parallel.tp=2", "--set parallel.tp=4",
                                  "--set parallel.pp=2", "--set parallel.pp=2 --set parallel.chunks=2",
                                  "--ranks 2",           "--set parallel.tp=2 --set parallel.pp=2"};

TEST_F(EvalProgram, EveryGridGivesTheFiguresOfOneRank) {
  ASSERT_EQ(run_shell(train("a",
                            "--set train.steps=600 --set optimizer.lr=5e-3 --set model.dropout=0.0 --set "
                            "train.eval_interval=0"))
                .code,
            0);
  for (const auto& [precision, tolerance] : {std::pair{"fp64", 1e-12}, {"fp32", 1e-6}}) {
    for (const std::string& task : tasks()) {
      const std::string command = eval("a", task) + " --precision " + precision + ' ';
      const nlohmann::json want = parsed(run_shell(command));
      for (const char* const grid : kGrids) {
        SCOPED_TRACE(command + grid);
        expect_alike(parsed(run_shell(command + grid)), want, tolerance);
      }
    }
  }
  // Some are right and some are not, so that hits can differ.
  const nlohmann::json results = parsed(run_shell(eval("a", lambada()))).at("results");
  EXPECT_GT(results.at("accuracy").get<double>(), 0.0);
  EXPECT_LT(results.at("accuracy").get<double>(), 1.0);
}

// Trained with a capacity, which inference leaves out, and on experts' own grid.
TEST_F(EvalProgram, ExpertsGiveTheFiguresOfOneRankOnEveryGrid) {
  ASSERT_EQ(run_shell(train("a",
                            "--set moe.num_experts=4 --set moe.capacity=drop --set moe.capacity_factor=1 --set "
                            "moe.shared_ffn_hidden_size=16 --set parallel.ep=2 --set train.eval_interval=0"))
                .code,
            0);
  const std::string command = eval("a", loss()) + " --precision fp64 ";
  const nlohmann::json want = parsed(run_shell(command));
  for (const char* const grid :
       {"--set parallel.ep=2", "--set parallel.tp=2", "--set parallel.tp=2 --set parallel.etp=1 --set parallel.ep=2",
        "--set parallel.pp=2 --set parallel.ep=2"}) {
    SCOPED_TRACE(grid);
    expect_alike(parsed(run_shell(command + grid)), want, 1e-12);
  }
  const std::string generate =
      "megalith generate --checkpoint " + out("a") + " --prompt the --max-tokens 12 --temperature 0 --precision fp64 ";
  const Finished text = run_shell(generate);
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* const grid : {"--set parallel.tp=2", "--set parallel.pp=2"})
    EXPECT_EQ(run_shell(generate + grid).out, text.out) << grid;
}

#ifdef MEGALITH_WITH_MPI
TEST_F(EvalProgram, ProcessesGiveTheFiguresOfThreads) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  for (const std::string& task : tasks()) {
    const std::string grid = task + " --precision fp64 --set parallel.tp=2 --set parallel.pp=2";
    const Finished threads = run_shell(eval("a", grid)),
                   processes = run_shell(support::mpirun(4, support::program() + eval("a", grid).substr(8)));
    ASSERT_EQ(processes.code, 0) << processes.err;
    EXPECT_EQ(parsed(processes).at("results"), parsed(threads).at("results")) << task;
  }
}
#endif

TEST_F(EvalProgram, TheReportNamesAllThatAFigureDependsOn) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const nlohmann::json report = parsed(run_shell(eval("a", wikitext()) + " --batch 3"));
  EXPECT_EQ(report.at("task"), "wikitext");
  EXPECT_EQ(report.at("protocol"), "paper");
  EXPECT_EQ(report.at("window"), 16);
  EXPECT_EQ(report.at("stride"), 4);
  EXPECT_EQ(report.at("precision"), "fp32");
  EXPECT_EQ(report.at("device"), "cpu");
  EXPECT_EQ(report.at("batch"), 3);
  EXPECT_EQ(report.at("checkpoint").at("folder"), out("a") + "/checkpoints/step_00000008");
  const Finished digest = run_shell("megalith checkpoint verify " + out("a"));
  EXPECT_THAT(digest.out, HasSubstr(report.at("checkpoint").at("digest").get<std::string>()));
  EXPECT_EQ(report.at("paper").size(), 4u);
  const Finished text = run_shell("megalith eval " + out("a") + " " + wikitext());
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("adjusted perplexity"));
  EXPECT_THAT(text.out, HasSubstr("355M"));
  EXPECT_THAT(text.out, HasSubstr("window 16, stride 4\n"));
  EXPECT_THAT(text.out, ::testing::ContainsRegex("tokenizer +byte\n"));
  EXPECT_EQ(report.at("tokenizer").at("name"), "byte");
  EXPECT_THAT(run_shell("megalith eval " + out("a") + " " + lambada()).out, HasSubstr("window 16\n")) << "no stride";
  EXPECT_TRUE(parsed(run_shell(eval("a", lambada()))).at("results").at("correct").is_number_integer());
  EXPECT_THAT(text.err, HasSubstr("passages"));
}

// One word of 20,000 letters: its perplexity is above all numbers.
TEST_F(EvalProgram, APerplexityAboveAllNumbersIsSaid) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  write_all(dir_ / "long.raw", " = A = \n \n " + std::string(20'000, 'Q') + " \n");
  const std::string task = "--task wikitext --protocol harness --data " + out("long.raw");
  const Finished as_json = run_shell(eval("a", task)), text = run_shell("megalith eval " + out("a") + ' ' + task);
  EXPECT_TRUE(parsed(as_json).at("results").at("word_perplexity").is_null());
  EXPECT_THAT(parsed(as_json).at("warnings").dump(), HasSubstr("word_perplexity: is above 1.8e308"));
  EXPECT_THAT(text.out, ::testing::ContainsRegex("word perplexity +inf\n"));
  EXPECT_THAT(text.err, HasSubstr("word_perplexity: is above 1.8e308"));
  write_all(dir_ / "long.raw", " = A = \n \n " + std::string(80, 'Q') + " \n");
  EXPECT_THAT(run_shell("megalith eval " + out("a") + ' ' + task).out,
              ::testing::ContainsRegex("word perplexity +[0-9]\\.[0-9]*e[+][0-9]*\n"));
}

TEST_F(EvalProgram, AHuggingFaceFolderIsAsItsCheckpoint) {
  ASSERT_EQ(run_shell(train("a", "--set train.steps=30")).code, 0);
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 0);
  for (const char* const grid : {"", "--set parallel.tp=2 --set parallel.pp=2"}) {
    const nlohmann::json want = parsed(run_shell(eval("a", lambada()) + ' ' + grid)),
                         got = parsed(run_shell(eval("hf", lambada()) + ' ' + grid));
    EXPECT_EQ(got.at("results"), want.at("results"));
    EXPECT_NE(got.at("checkpoint").at("digest"), want.at("checkpoint").at("digest"));
  }
}

TEST_F(EvalProgram, ExamplesThatOccurInTrainingAreToldApart) {
  ASSERT_EQ(run_shell(train("a", "--set train.steps=30")).code, 0);
  // Two of the four texts that the examples begin with.
  const Finished found = run_shell("sed -n '1p;3p' " + out("lambada.jsonl") + " > " + out("seen.jsonl") +
                                   "; megalith data overlap --ngram 3 --train " + out("seen.jsonl") + " --test " +
                                   out("lambada.jsonl") + " --output " + out("overlap"));
  ASSERT_EQ(found.code, 0) << found.err;
  const std::string file = out("examples.jsonl");
  const nlohmann::json report =
      parsed(run_shell(eval("a", lambada()) + " --per-example " + file + " --overlap " + out("overlap")));
  const nlohmann::json& with = report.at("overlap").at("with");
  const nlohmann::json& without = report.at("overlap").at("without");
  std::ifstream documents(out("overlap") + "/per_document.jsonl"), examples(file);
  std::string line;
  std::getline(examples, line);  // what the file is of
  std::vector<bool> overlaps;
  while (std::getline(documents, line)) overlaps.push_back(nlohmann::json::parse(line).at("found") > 0);
  double sum[2] = {0, 0};
  int count[2] = {0, 0}, correct[2] = {0, 0};
  while (std::getline(examples, line)) {
    const nlohmann::json example = nlohmann::json::parse(line);
    const int at = overlaps.at(example.at("example").get<std::size_t>()) ? 1 : 0;
    ++count[at];
    sum[at] -= example.at("log_probability").get<double>();
    correct[at] += example.at("correct").get<bool>() ? 1 : 0;
  }
  EXPECT_GT(count[0], 0);
  EXPECT_GT(count[1], 0);
  for (const auto& [part, at] : {std::pair{&without, 0}, std::pair{&with, 1}}) {
    EXPECT_EQ(part->at("examples"), count[at]);
    EXPECT_EQ(part->at("results").at("correct"), correct[at]);
    EXPECT_DOUBLE_EQ(part->at("results").at("perplexity").get<double>(), std::exp(sum[at] / count[at]));
  }
  EXPECT_EQ(report.at("results").at("correct"), correct[0] + correct[1]);
  const auto refused = [&](const std::string& more, int code, const std::string& text) {
    const Finished run = run_shell("megalith eval " + out("a") + ' ' + more);
    EXPECT_EQ(run.code, code) << run.err;
    EXPECT_THAT(run.err, HasSubstr(text));
  };
  refused(loss() + " --overlap " + out("overlap"), 64, "is for --task lambada, whose examples are documents");
  refused(lambada() + " --overlap " + out("a"), 65, "must be a folder that `megalith data overlap --output` wrote");
  refused("--task lambada --data " + out("seen.jsonl") + " --overlap " + out("overlap"), 65,
          "has no document of seen.jsonl, but of lambada.jsonl: must have one for each of the 2 examples");
}

TEST_F(EvalProgram, AnInterruptedEvaluationGoesOn) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string file = out("examples.jsonl"), command = eval("a", loss()) + " --per-example " + file;
  const nlohmann::json want = parsed(run_shell(command));
  const std::string whole = read_all(file);
  EXPECT_EQ(std::ranges::count(whole, '\n'), want.at("counts").at("windows").get<int>() + 1);
  const Finished again = run_shell(command);
  EXPECT_EQ(again.code, 64);
  EXPECT_THAT(again.err, HasSubstr("--per-example = " + file + ": exists already: go on with --resume"));
  // Cut in the middle of a line, as a crash leaves it.
  write_all(file, whole.substr(0, whole.size() / 2));
  const nlohmann::json resumed = parsed(run_shell(command + " --resume --batch 2"));
  expect_alike(resumed, want, 1e-6);
  EXPECT_GT(resumed.at("resumed_examples").get<int>(), 100);
  EXPECT_EQ(std::ranges::count(read_all(file), '\n'), want.at("counts").at("windows").get<int>() + 1);
  const nlohmann::json complete = parsed(run_shell(command + " --resume"));
  EXPECT_EQ(complete.at("resumed_examples"), want.at("counts").at("windows"));
  EXPECT_EQ(complete.at("results"), resumed.at("results")) << "numbers read back as they were";
  const Finished other = run_shell(eval("a", wikitext()) + " --resume --per-example " + file);
  EXPECT_EQ(other.code, 65) << other.err;
  EXPECT_EQ(other.out, "");
  EXPECT_THAT(other.err,
              HasSubstr("examples.jsonl] line 1: is of another evaluation: must be {\"evaluation\":\"wikitext, "
                        "paper, window 16, stride 4, data "));
  EXPECT_THAT(other.err, HasSubstr("\"}; name another file")) << "on one line";
}

TEST_F(EvalProgram, ResultsThatWereChangedAreComputedAgain) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string file = out("examples.jsonl"), command = eval("a", lambada()) + " --per-example " + file;
  const nlohmann::json want = parsed(run_shell(command));
  const std::string whole = read_all(file);
  std::vector<std::string> lines;
  std::istringstream in(whole);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 41u);
  // The same example of another evaluation, with a checksum that holds there.
  ASSERT_EQ(run_shell(eval("a", lambada()) + " --window 8 --per-example " + out("other.jsonl")).code, 0);
  std::istringstream other(read_all(out("other.jsonl")));
  std::vector<std::string> others;
  for (std::string line; std::getline(other, line);) others.push_back(line);
  const auto with = [](std::string line, const std::string& from, const std::string& to) {
    EXPECT_NE(line.find(from), line.npos) << line;
    return line.replace(line.find(from), from.size(), to);
  };
  using Lines = std::vector<std::string>;
  const auto changed = [&](const Lines& left, int changed_lines, int resumed) {
    std::string text;
    for (const std::string& line : left) text += line + '\n';
    write_all(file, text);
    const Finished again = run_shell(command + " --resume");
    const nlohmann::json report = parsed(again);
    expect_alike(report, want, 1e-6);
    EXPECT_EQ(report.at("resumed_examples"), resumed);
    const std::string warning =
        str(file, ": ", changed_lines, changed_lines == 1 ? " line was" : " lines were", " changed or cut");
    if (changed_lines > 0)
      EXPECT_THAT(again.err, HasSubstr(warning));
    else
      EXPECT_EQ(again.err.find("changed"), again.err.npos) << again.err;
    EXPECT_EQ(std::ranges::count(read_all(file), '\n'), 41);
    EXPECT_EQ(parsed(run_shell(command + " --resume")).at("resumed_examples"), 40) << "the file is whole again";
  };
  const auto replaced = [&](std::initializer_list<std::pair<std::size_t, std::string>> places) {
    Lines left = lines;
    for (const auto& [place, line] : places) left[place] = line;
    return left;
  };
  changed(lines, 0, 40);
  changed(replaced({{3, with(lines[3], "log_probability\":-", "log_probability\":-1")}}), 1, 39);
  changed(replaced({{3, with(lines[3], "{", "{ ")}}), 1, 39);
  changed(replaced({{5, with(lines[5], "\"example\":", "\"example\":1")}, {40, ""}}), 2, 38);
  changed(replaced({{7, with(lines[7], "\"correct\":", "\"correct\":true,\"was\":")}}), 1, 39);
  changed(replaced({{9, with(lines[9], ",\"checksum\"", ",\"check\"")}}), 1, 39);
  changed(replaced({{2, others[2]}, {4, others[4]}}), 2, 38);
  changed(replaced({{11, lines[12]}}), 0, 39);
  changed(replaced({{0, with(lines[0], "lambada", "lambadb")}}), 1, 40);
  changed(replaced({{0, "anything"}}), 1, 40);
  changed(replaced({{0, with(lines[0], "lambada", "lambadb")}, {1, "x"}, {20, "{}"}}), 3, 38);
  changed({with(lines[0], "lambada", "lambadb")}, 1, 0);
  const std::string unsealed = lines[0].substr(0, lines[0].find(",\"checksum\"")) + "}";
  changed(replaced({{0, unsealed}}), 1, 40);
  changed({unsealed}, 1, 0);
  changed({lines[0].substr(0, 40)}, 1, 0);
  Lines all = lines;
  for (std::size_t i = 1; i < all.size(); ++i) all[i] = with(all[i], "\"targets\":", "\"targets\":9");
  changed(all, 40, 0);
  // Without a line that the evaluation has written the file is somebody else's.
  for (const std::string& foreign :
       {std::string("{\"a\": 1}\n"), std::string("notes\n"), read_all(out("other.jsonl"))}) {
    write_all(file, foreign);
    const Finished refused = run_shell(command + " --resume");
    EXPECT_EQ(refused.code, 65) << refused.err;
    EXPECT_EQ(read_all(file), foreign);
  }
}

TEST_F(EvalProgram, OnlyAFileIsReplacedByResults) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string command = eval("a", lambada()) + " --resume --per-example ";
  std::filesystem::create_directory(dir_ / "real");
  std::filesystem::create_symlink("real/examples.jsonl", dir_ / "link");  // to nothing, so far
  for (const int resumed : {0, 40}) {
    EXPECT_EQ(parsed(run_shell(command + out("link"))).at("resumed_examples"), resumed);
    EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
    EXPECT_EQ(std::ranges::count(read_all(dir_ / "real" / "examples.jsonl"), '\n'), 41);
  }
  ASSERT_EQ(run_shell("mkfifo " + out("pipe")).code, 0);
  for (const auto& [name, rule] : {std::pair{"pipe", "is a device or a pipe, which no file may replace; name another"},
                                   {"real", "is a folder; name a file in it"}}) {
    const Finished refused = run_shell(command + out(name));
    EXPECT_EQ(refused.code, 64) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr("--per-example = " + out(name) + ": " + rule));
  }
  EXPECT_TRUE(std::filesystem::is_fifo(dir_ / "pipe"));
}

TEST_F(EvalProgram, AKilledEvaluationLeavesNoReport) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string file = out("examples.jsonl");
  const Finished killed =
      run_shell(support::program() + eval("a", loss() + " --stride 1 --batch 1").substr(8) + " --per-example " + file +
                " & pid=$!; " + support::wait_until("[ $(wc -l < " + file + " 2>/dev/null || echo 0) -gt 20 ]") +
                "kill -TERM $pid; wait $pid");
  EXPECT_EQ(killed.out, "");
  EXPECT_NE(killed.code, 0);
  EXPECT_GT(std::ranges::count(read_all(file), '\n'), 20);
}

TEST_F(EvalProgram, MistakesAreNamedAllAtOnce) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  const std::string file = out("examples.jsonl");
  const auto refused = [&](const std::string& options, int code, const std::vector<std::string>& texts) {
    const Finished got = run_shell("megalith eval " + out("a") + " --per-example " + file + ' ' + options);
    EXPECT_EQ(got.code, code) << options << "\n" << got.err;
    EXPECT_EQ(got.out, "") << options;
    for (const std::string& text : texts) EXPECT_THAT(got.err, HasSubstr(text)) << options;
    EXPECT_FALSE(std::filesystem::exists(file)) << options;
  };
  refused("--task wikitext --window 17 --stride 18 --data x", 64,
          {"--window = 17: must be at most 16, the positions that the model has learned",
           "--stride = 18: must be 1 to --window = 17"});
  refused("--task wikitext --window 17 --stride 18 --set parallel.tp=3 --data x", 64,
          {"--window = 17: must be at most 16", "--stride = 18: must be 1 to --window = 17",
           "parallel.tp = 3: must divide model.num_heads = 4"});
  refused("--task loss --data x --vocab-dir nowhere", 64, {"the model's tokenizer is \"byte\", which reads no files"});
  refused("--task loss --stride 0 --data x", 64, {"--stride"});
  refused("--task lambada --stride 2 --protocol harness --data x", 64,
          {"--stride = 2: is for --task loss", "--protocol = harness: is for --task wikitext"});
  refused("--task loss --data x --set train.steps=3 --set model.num_layers=2", 64,
          {"train.steps = 3: is not for this command", "model.num_layers = 2: is not for this command"});
  refused("--task loss --data x --set parallel.tp=3", 64, {"parallel.tp = 3: must divide model.num_heads = 4"});
  refused("--task loss --data x --ranks 3 --set parallel.tp=2", 64, {"parallel"});
  refused("--task loss --data " + out("nowhere"), 65, {"nowhere"});
  write_all(dir_ / "empty", "");
  for (const char* const task : {"loss", "wikitext", "lambada"})
    refused(std::string("--task ") + task + " --data " + out("empty"), 65, {"/empty] is empty: must hold text"});
  write_all(dir_ / "one", "a");
  refused("--task loss --data " + out("one"), 65, {"text of 1 token: must be of two or more"});
  write_all(dir_ / "plain", "= A =\n\nplain text.");
  refused("--task wikitext --data " + out("plain"), 65, {"it is detokenised already"});
  refused("--task wikitext --protocol harness --data " + out("wiki.tokens"), 65, {"wiki.tokens] line 4: has <unk>"});
  write_all(dir_ / "bad.jsonl", "{\"text\": \"one\"}\nno\n{\"text\": \"a \xff\"}\n");
  refused("--task lambada --data " + out("bad.jsonl"), 65, {"bad.jsonl] line 3, byte 31 of the file: must be UTF-8"});
  write_all(dir_ / "bad2.jsonl", "{\"text\": \"one\"}\nno\n{\"text\": 7}\n");
  refused("--task lambada --data " + out("bad2.jsonl"), 65,
          {"3 problems", "line 1: a passage of one word", "bad2.jsonl] line 2", "bad2.jsonl] line 3"});
  std::string many = "{\"text\": \"\"}\n{\"txt\": \"a\"}\n";
  for (int i = 0; i < 101; ++i) many += "no\n";
  write_all(dir_ / "many.jsonl", many);
  refused("--task loss --data " + out("many.jsonl"), 65,
          {"many.jsonl] 103 problems\n", "line 1: text is empty: must hold text; remove the line\n",
           "line 2, key \"text\": is missing; did you mean txt? a line is {\"text\": \"...\"}\n", "many.jsonl] line 20",
           "\n  and 83 more\n"});
  const Finished no_model = run_shell("megalith eval " + out("nowhere") + " --task loss --data x");
  EXPECT_EQ(no_model.code, 65) << no_model.err;
  const Finished no_folder = run_shell("megalith eval " + out("one") + " --task loss --data x");
  EXPECT_EQ(no_folder.code, 65) << no_folder.err;
  EXPECT_THAT(no_folder.err, HasSubstr("/one] is a file: must be a folder"));
  const Finished resume = run_shell("megalith eval " + out("a") + " --task loss --resume --data x");
  EXPECT_EQ(resume.code, 64);
  EXPECT_THAT(resume.err, HasSubstr("--resume = true: needs --per-example"));
}

TEST_F(EvalProgram, AnotherVocabularyIsRefused) {
  ASSERT_EQ(run_shell("megalith tokenizer train --type bpe --vocab-size 280 --input " + out("text.txt") + " --output " +
                      out("bpe"))
                .code,
            0);
  ASSERT_EQ(run_shell("megalith tokenizer train --type bpe --vocab-size 270 --input " + out("text.txt") + " --output " +
                      out("smaller"))
                .code,
            0);
  const Finished trained = run_shell(train("a",
                                           "--set model.vocab_size=280 --set data.tokenizer=bpe --set "
                                           "data.vocab_dir=" +
                                               out("bpe")));
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(run_shell(eval("a", loss())).code, 0);
  EXPECT_EQ(run_shell(eval("a", loss()) + " --vocab-dir " + out("bpe")).code, 0);
  const Finished refused = run_shell(eval("a", loss()) + " --vocab-dir " + out("smaller"));
  EXPECT_EQ(refused.code, 65);
  EXPECT_THAT(refused.err, HasSubstr(": has 270 ids, the model has 280: must be the vocabulary that the model was "
                                     "trained with"));
  ASSERT_EQ(run_shell("megalith checkpoint export-hf " + out("a") + " --out " + out("hf")).code, 0);
  std::filesystem::remove(dir_ / "hf" / "vocab.json");
  std::filesystem::remove(dir_ / "hf" / "merges.txt");
  std::filesystem::remove(dir_ / "hf" / "tokenizer.json");
  const Finished none = run_shell(eval("hf", loss()));
  EXPECT_EQ(none.code, 65);
  EXPECT_THAT(none.err, HasSubstr("/hf] holds no tokenizer ("));
  EXPECT_THAT(none.err, HasSubstr("with --vocab-dir"));
  const nlohmann::json named = parsed(run_shell(eval("hf", loss()) + " --vocab-dir " + out("bpe")));
  EXPECT_EQ(named.at("tokenizer").at("folder"), out("bpe"));
}

TEST_F(EvalProgram, TheCheckpointBeforeADamagedOneIsUsed) {
  ASSERT_EQ(run_shell(train("a", "--set checkpoint.interval=4")).code, 0);
  const std::string want =
      parsed(run_shell(eval("a", lambada()).replace(14, out("a").size(), out("a") + "/checkpoints/step_00000004")))
          .at("results")
          .dump();
  ASSERT_EQ(run_shell("printf x | dd of=" + out("a") +
                      "/checkpoints/step_00000008/shard_00000.safetensors bs=1 seek=40000 conv=notrunc")
                .code,
            0);
  const Finished got = run_shell(eval("a", lambada()) + " --set parallel.tp=2 --set parallel.pp=2");
  EXPECT_THAT(got.err, HasSubstr("step_00000008 cannot be used"));
  EXPECT_EQ(parsed(got).at("counts").at("examples"), 40);
  EXPECT_NE(want, "");
}

TEST_F(EvalProgram, ScoreTakesAnyGrid) {
  ASSERT_EQ(run_shell(train("a")).code, 0);
  std::ofstream(dir_ / "ids.json")
      << "[[116, 104, 101, 32, 255, 0, 7], [1], [1, 2], [5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]]";
  const std::string score =
      "megalith score --precision fp64 --checkpoint " + out("a") + " --tokens " + out("ids.json") + " ";
  const nlohmann::json want = parsed(run_shell(score)).at("logprobs");
  for (const char* const grid : kGrids) {
    const nlohmann::json got = parsed(run_shell(score + grid)).at("logprobs");
    ASSERT_EQ(got.size(), 4u);
    for (std::size_t list = 0; list < 4; ++list) {
      ASSERT_EQ(got[list].size(), want[list].size());
      EXPECT_TRUE(got[list][0].is_null());
      for (std::size_t i = 1; i < want[list].size(); ++i)
        EXPECT_NEAR(got[list][i].get<double>(), want[list][i].get<double>(), 1e-12) << grid;
    }
  }
}

}  // namespace
}  // namespace megalith
