#include "megalith/report/run_page.h"

#include <cmath>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/config/run_config.h"

#include "tests/io/temp_dir.h"

namespace megalith::apps {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A folder OUT of a run.
class PageOut : public ::testing::Test {
 protected:
  std::string out(const std::string& name) {
    std::filesystem::create_directories(dir_ / name);
    return (dir_ / name).string();
  }
  void write(const std::string& name, const std::string& file, const std::string& text,
             std::ios::openmode mode = std::ios::trunc) {
    std::ofstream(out(name) + "/" + file, mode) << text;
  }
  void write_recipe(const std::string& name, const std::vector<std::string>& settings = {}) {
    const std::string text =
        "[model]\nnum_layers = 4\nhidden_size = 64\nnum_heads = 4\nseq_len = 32\n[train]\nsteps = 9\nglobal_batch = "
        "8\nmicro_batch = 1\n[parallel]\nranks = 4\ntp = 2\npp = 2\n[data]\ntokenizer = \"byte\"\ntrain = "
        "\"text.txt\"\n";
    const config::RunConfig asked = config::parse_recipe(text, "r.toml", settings);
    write(name, "recipe.toml", config::to_toml(config::resolve(asked).as_config()));
  }
  RunPage page(const std::vector<std::string>& names) {
    std::vector<std::string> outs;
    for (const std::string& name : names) outs.push_back(out(name));
    return {io::posix_fs(), outs};
  }
  json data_of(const std::string& name) { return json::parse(page({name}).json()).at("runs").at(0); }
  TempDir dir_;
};

/// A line of metrics.jsonl as MetricsLog writes it, with `more` before its end.
std::string step_line(Index step, double loss, const std::string& more = "") {
  return str("{\"step\":", step, ",\"loss\":", loss, ",\"grad_norm\":", 1 + 1.0 / static_cast<double>(step),
             ",\"lr\":", 1e-3 / static_cast<double>(step), ",\"loss_scale\":1,\"skipped\":0,\"tokens\":", 2048 * step,
             ",\"step_time_s\":", 0.1 + 1e-3 * static_cast<double>(step % 7),
             ",\"tokens_per_second\":", 20000 + step % 97,
             ",\"model_tflops_per_s\":", 1.5 + 1e-3 * static_cast<double>(step % 11),
             ",\"missed_saves\":0,\"memory_bytes\":123456789", more, "}\n");
}

std::string layers_of(Index step, Index count) {
  std::string layers;
  for (Index layer = 0; layer < count; ++layer) {
    const double load = 1 + static_cast<double>((step * 31 + layer * 17) % 101) / 50;
    layers +=
        str(layer == 0 ? "" : ",", "{\"layer\":", layer, ",\"max_over_mean\":", load, ",\"p95_over_mean\":", load * 0.9,
            ",\"hottest\":[[3,0.2],[1,0.15],[0,0.1]],\"empty\":", step % 3, ",\"choices\":4096,\"dropped\":", step % 5,
            ",\"echo\":{\"before\":", load, ",\"after\":", 1 + load / 50, ",\"moved\":", step % 77,
            ",\"clones\":", step % 4, ",\"wanted\":", step % 3, ",\"dropped\":0,\"bytes\":786432}}");
  }
  return str(",\"moe\":{\"layers\":[", layers, "],\"aux_loss\":", 0.01 * static_cast<double>(step % 13),
             ",\"z_loss\":0}");
}

TEST(ThinnedSeries, KeepsEveryPeakInItsBucket) {
  ThinnedSeries series(10);
  for (Index step = 1; step <= 100; ++step) series.add(step, step == 37 ? 500.0 : step == 38 ? -3.0 : 1.0);
  const json got = json::parse(series.json());
  EXPECT_EQ(got.at("width"), 16);
  EXPECT_EQ(got.at("first"), 1);
  EXPECT_THAT(got.at("max").get<std::vector<double>>(), ElementsAre(1, 1, 500, 1, 1, 1, 1));
  EXPECT_THAT(got.at("min").get<std::vector<double>>(), ElementsAre(1, 1, -3, 1, 1, 1, 1));
  EXPECT_NEAR(got.at("mean").at(2), (14.0 + 500 - 3) / 16, 1e-3);
}

TEST(ThinnedSeries, GapsAreNullAndEqualValuesOneNumber) {
  ThinnedSeries series(10);
  for (const Index step : {3, 5}) series.add(step, 0.5 * static_cast<double>(step));
  EXPECT_EQ(series.json(), R"({"width":1,"first":3,"mean":[1.5,null,2.5]})");
  ThinnedSeries same(10);
  for (Index step = 1; step <= 4; ++step) same.add(step, 0.25);
  EXPECT_EQ(same.json(), R"({"width":1,"first":1,"same":0.25,"count":4})");
}

TEST(ThinnedSeries, TakesStepsInAnyOrderAndFarApart) {
  ThinnedSeries series(4);
  for (const Index step : {Index{1000}, Index{10}, Index{1} << 53}) series.add(step, static_cast<double>(step % 100));
  const json got = json::parse(series.json());
  EXPECT_LE(got.at("mean").size(), 4U);
  EXPECT_EQ(got.at("min").at(0), 0);
  EXPECT_EQ(got.at("max").at(0), 10);
}

TEST_F(PageOut, HasEverySeriesUnderItsNameInTheMetrics) {
  write("a", "metrics.jsonl",
        step_line(1, 5, layers_of(1, 2)) + step_line(2, 4, ",\"mlm_loss\":3.5,\"rerun\":1" + layers_of(2, 2)) +
            "{\"eval\":\"valid\",\"step\":2,\"loss\":4.5,\"perplexity\":90.1}\n" + step_line(3, 3));
  const json run = data_of("a");
  for (const char* name : {"loss", "grad_norm", "lr", "loss_scale", "tokens", "step_time_s", "tokens_per_second",
                           "model_tflops_per_s", "missed_saves", "memory_bytes", "mlm_loss", "moe.aux_loss"})
    EXPECT_TRUE(run.at("series").contains(name)) << name;
  EXPECT_THAT(run.at("series").at("loss").at("mean").get<std::vector<double>>(), ElementsAre(5, 4, 3));
  EXPECT_EQ(run.at("evals").at(0).at("perplexity"), 90.1);
  EXPECT_EQ(run.at("marks").at(0), (json{{"kind", "rerun"}, {"step", 2}}));
  const json& layer = run.at("loads").at(1);
  EXPECT_EQ(layer.at("layer"), 1);
  for (const char* name : {"max_over_mean", "p95_over_mean", "empty", "dropped", "echo.before", "echo.after"})
    EXPECT_TRUE(layer.at("series").contains(name)) << name;
  EXPECT_EQ(layer.at("hottest").at(0).at(0), 3);
}

TEST_F(PageOut, SkippedStepsValuesThatAreNotFiniteAndEventsAreMarks) {
  std::string skipped = step_line(2, 4);
  skipped.replace(skipped.find("\"skipped\":0"), 11, "\"skipped\":1");
  std::string broken = step_line(3, 4);
  broken.replace(broken.find("\"loss\":4"), 8, "\"loss\":null");
  write("a", "metrics.jsonl", step_line(1, 5) + skipped + broken + step_line(4, 9, ",\"loss_spike\":2.5"));
  write("a", "history.jsonl",
        "{\"event\":\"start\",\"step\":0,\"time\":\"2026-11-28T17:31:05Z\",\"text\":\"tp 1\"}\n"
        "{\"event\":\"fault\",\"step\":3,\"time\":\"t\",\"text\":\"E73\"}\n"
        "{\"event\":\"fault\",\"step\":3,\"time\":\"u\",\"text\":\"E73\"}\n"
        "{\"event\":\"resume\",\"step\":2,\"time\":\"v\",\"text\":\"step_00000002\"}\n");
  const json run = data_of("a");
  std::vector<std::string> kinds;
  for (const json& mark : run.at("marks"))
    kinds.push_back(str(mark.at("kind").get<std::string>(), ' ', mark.at("step").get<Index>()));
  EXPECT_THAT(kinds, ElementsAre("skipped 2", "not finite 3", "spike 4", "start 0", "fault 3", "resume 2"));
  EXPECT_EQ(run.at("mark_counts").at("fault"), 1);
  EXPECT_EQ(run.at("marks").at(2).at("text"), "loss: 2.5 times its mean");
  EXPECT_FALSE(run.at("series").contains("loss_spike"));
}

TEST_F(PageOut, ShowsTheCompleteLinesAndNamesTheRest) {
  write("a", "metrics.jsonl",
        step_line(1, 5) + "{\"step\":2,\"lo\n" + std::string(40, '\0') + "\n[1]\n{\"loss\":3}\n{\"step\":-4}\n" +
            "{\"step\":99999999999999999999}\n{\"step\":1.5}\n\"\xff\"\n" + step_line(7, 2) + "{\"step\":8,\"loss\":1");
  const json run = data_of("a");
  EXPECT_EQ(run.at("steps"), 2);
  EXPECT_EQ(run.at("last_step"), 7);
  const auto left_out = run.at("left_out").get<std::vector<std::string>>();
  ASSERT_EQ(left_out.size(), 9U) << run.at("left_out");
  EXPECT_EQ(left_out[0], "metrics.jsonl line 2: is not JSON; the line is left out");
  EXPECT_EQ(left_out[2], "metrics.jsonl line 4: is no JSON object; the line is left out");
  EXPECT_EQ(left_out[3], "metrics.jsonl line 5: has no step; the line is left out");
  EXPECT_THAT(left_out[8], HasSubstr("metrics.jsonl line 11: has no end after 18 bytes"));
}

TEST_F(PageOut, ReadsNewLinesAndARunThatResumed) {
  write("a", "metrics.jsonl", step_line(1, 5) + step_line(2, 4) + step_line(3, 3).substr(0, 20));
  RunPage live = page({"a"});
  EXPECT_FALSE(live.update());
  write("a", "metrics.jsonl", step_line(3, 3).substr(20), std::ios::app);
  EXPECT_TRUE(live.update());
  const auto losses = [&] {
    return json::parse(live.json()).at("runs").at(0).at("series").at("loss").at("mean").get<std::vector<double>>();
  };
  EXPECT_THAT(losses(), ElementsAre(5, 4, 3));
  // From step 1 again: longer than what was read, with other lines.
  write("a", "metrics.jsonl", step_line(1, 5) + step_line(2, 4.5) + step_line(3, 3.5) + step_line(4, 3.25));
  EXPECT_TRUE(live.update());
  EXPECT_THAT(losses(), ElementsAre(5, 4.5, 3.5, 3.25));
}

TEST_F(PageOut, ARecipeGivesMemoryGridAndSchedule) {
  write("a", "metrics.jsonl", step_line(1, 5));
  write_recipe("a");
  const json run = data_of("a");
  EXPECT_EQ(run.at("recipe_problem"), "");
  EXPECT_EQ(run.at("planned_steps"), 9);
  EXPECT_EQ(run.at("recipe").at("parallel.tp"), "2");
  EXPECT_GT(run.at("memory").at("rows").at(0).at("bytes").at("parameters"), 0);
  EXPECT_EQ(run.at("grid").at("ranks").size(), 4U);
  EXPECT_EQ(run.at("grid").at("ranks").at(3), json::parse("[1,0,0,1,1,0,0]"));
  const json& schedule = run.at("schedule");
  EXPECT_EQ(schedule.at("microbatches"), 8);
  ASSERT_EQ(schedule.at("spans").size(), 2U);
  EXPECT_EQ(schedule.at("spans").at(0).size(), 16U);
  EXPECT_EQ(schedule.at("spans").at(1).at(0), json::parse("[1,1,0]"));  // starts when stage 0 has ended
  EXPECT_NEAR(schedule.at("idle_percent"), 100.0 / 9, 0.1);             // (pp - 1) / (m + pp - 1)
}

TEST(ScheduleJson, OfManyMicrobatchesTheFirstAreDrawn) {
  const json got = json::parse(schedule_json({8, 2, 4096, 0}));
  EXPECT_EQ(got.at("microbatches"), 4096);
  EXPECT_LT(got.at("drawn"), 40);
  EXPECT_GE(got.at("drawn"), 8);
  EXPECT_EQ(json::parse(schedule_json({1024, 1, 4096, 0})).at("drawn"), 0);
}

TEST_F(PageOut, NamesWhatDiffersBetweenRecipes) {
  for (const char* name : {"a", "b"}) write(name, "metrics.jsonl", step_line(1, 5));
  write_recipe("a");
  write_recipe("b", {"optimizer.lr=0.5", "train.seed=7"});
  const json data = json::parse(page({"a", "b"}).json());
  EXPECT_THAT(data.at("differs").get<std::vector<std::string>>(),
              ::testing::IsSupersetOf({"optimizer.lr", "train.seed"}));
  EXPECT_THAT(data.at("differs").get<std::vector<std::string>>(), Not(::testing::Contains("model.num_layers")));
}

TEST_F(PageOut, ABrokenRecipeIsNamedAndTheSeriesAreShown) {
  write("a", "metrics.jsonl", step_line(1, 5));
  write("a", "recipe.toml", "[model]\nlayers = 4\n");
  EXPECT_THAT(data_of("a").at("recipe_problem"), HasSubstr("layers"));
  write("b", "metrics.jsonl", step_line(1, 5));
  EXPECT_THAT(data_of("b").at("recipe_problem"), HasSubstr("recipe.toml"));
  EXPECT_EQ(data_of("b").at("steps"), 1);
}

TEST_F(PageOut, RefusesFoldersWithoutMetricsAllAtOnce) {
  write("a", "metrics.jsonl", step_line(1, 5));
  write("a", "file", "");
  try {
    RunPage(io::posix_fs(), {out("a"), out("empty"), (dir_ / "nowhere").string(), out("a") + "/file"});
    FAIL() << "must be refused";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("3 problems"));
    EXPECT_THAT(error.what(), HasSubstr("empty/metrics.jsonl] no such file: no run has begun in this folder; `megalith "
                                        "train RECIPE --out "));
    EXPECT_THAT(error.what(), HasSubstr("nowhere] no such folder"));
    EXPECT_THAT(error.what(), HasSubstr("a/file] is a file: name the folder OUT of a run"));
  }
}

/// The text of the element that a page has once.
std::string element_of(const std::string& page, const std::string& start, const std::string& end) {
  const std::size_t at = page.find(start);
  if (at == std::string::npos || page.find(start, at + 1) != std::string::npos) return "";
  return page.substr(at + start.size(), page.find(end, at) - at - start.size());
}

TEST_F(PageOut, ThePageHoldsItsDataAndFetchesNothing) {
  write("a", "metrics.jsonl", step_line(1, 5));
  write("a", "history.jsonl",
        "{\"event\":\"warning\",\"step\":1,\"time\":\"t\",\"text\":\"</script><script>alert(1)</script> RUN_DATA\"}\n");
  write_recipe("a");
  const RunPage made = page({"a"});
  const std::string html = made.html(RunPage::Kind::file);
  const std::string data = element_of(html, "<script type=\"application/json\" id=\"data\">", "</script>");
  EXPECT_EQ(json::parse(data), json::parse(made.json()));
  EXPECT_THAT(json::parse(data).at("runs").at(0).at("marks").at(0).at("text"), HasSubstr("</script>"));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* word : {"https://", "<link rel=\"style", " src=", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(word)));
  for (const char* id : {"main-charts", "more-charts", "load-maps", "memory-bars", "grid-pictures", "schedule-pictures",
                         "event-tables", "recipe-tables"})
    EXPECT_NE(element_of(html, str(" id=\"", id, "\""), ">"), "no") << id;
  for (const char* word : {"CHART_STYLE", "PAGE_STYLE", "PAGE_SCRIPT", "= LIVE;"})
    EXPECT_THAT(html, Not(HasSubstr(word)));
  EXPECT_THAT(html, HasSubstr("const live = false;"));
  EXPECT_THAT(made.html(RunPage::Kind::served), HasSubstr("const live = true;"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
}

TEST_F(PageOut, OfManyEvaluationsEachSetKeepsItsShare) {
  constexpr Index kEvaluations = 401;
  const std::vector<std::string> names = {"valid", "arc/a", "mmlu/b/5-shot"};
  for (std::size_t sets = 1; sets <= names.size(); ++sets) {
    std::string lines;
    for (Index step = 1; step <= kEvaluations; ++step) {
      for (std::size_t set = 0; set < sets; ++set)
        lines += str("{\"eval\":\"", names[set], "\",\"step\":", step, ",\"acc\":0.5}\n");
    }
    const std::string out = str("sets", sets);
    write(out, "metrics.jsonl", step_line(1, 5) + lines);
    std::map<std::string, std::vector<Index>> steps;
    const json run = data_of(out);
    for (const json& one : run.at("evals")) steps[one.at("eval")].push_back(one.at("step"));
    ASSERT_EQ(steps.size(), sets);
    for (const auto& [name, kept] : steps) {
      EXPECT_EQ(kept.front(), 1) << name;
      EXPECT_EQ(kept.back(), kEvaluations) << name;
      EXPECT_EQ(kept.size(), 400 / sets) << name;
      for (std::size_t i = 1; i < kept.size(); ++i)
        EXPECT_LE(kept[i] - kept[i - 1], static_cast<Index>(sets + 1)) << name;
    }
  }
}

TEST_F(PageOut, LongRunsKeepToTheSizeOfAPage) {
  constexpr Index kSteps = 10'000, kLayers = 16;
  constexpr std::size_t kMaxDense = 150'000, kMaxMoe = 400'000;
  std::string dense, moe;
  for (Index step = 1; step <= kSteps; ++step) {
    const double loss = 3 + std::sin(static_cast<double>(step) * 0.7) / 3;
    dense += step_line(step, loss);
    if (step % 16 == 0) moe += step_line(step, loss, layers_of(step, kLayers));
    if (step % 100 == 0)
      dense +=
          str("{\"eval\":\"valid\",\"step\":", step, ",\"loss\":", loss, ",\"perplexity\":", std::exp(loss), "}\n");
  }
  write("dense", "metrics.jsonl", dense);
  write("moe", "metrics.jsonl", moe);
  for (const char* name : {"dense", "moe"}) write_recipe(name);
  EXPECT_LT(page({"dense"}).html(RunPage::Kind::file).size(), kMaxDense);
  const json layers = data_of("moe").at("loads");
  ASSERT_EQ(layers.size(), static_cast<std::size_t>(kLayers));
  EXPECT_GT(layers.at(15).at("series").at("echo.after").at("mean").size(), 60U);
  EXPECT_LT(page({"moe"}).html(RunPage::Kind::file).size(), kMaxMoe);
}

}  // namespace
}  // namespace megalith::apps
