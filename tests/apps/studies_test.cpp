// scripts/studies with a program that measures nothing: tables, pictures, restarts, errors. One study with megalith.
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"

#include "tests/apps/process.h"
#include "tests/test_data.h"

namespace megalith {
namespace {

using support::Finished;
using testing::HasSubstr;

/// A step takes 1 + 1 / tp seconds. A run of `train` ends the
/// lower the larger its model is, and 0.1 higher with norms after sums; its recipe must be one of megalith's.
constexpr const char* kStandIn = R"(#!/usr/bin/env python3
import json, os, subprocess, sys, tomllib
words = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
print(" ".join(words), file=open(here + "/calls.txt", "a"))
def number(key):
    return int(words[words.index(key) + 1])
if words[0] == "doctor":
    print("program              megalith 1.2.3, commit abc")
    print("".join(f"GPU {i}  a GPU\n" for i in range(int(os.environ.get("GPUS", "0")))))
elif words[0] == "bench":
    if os.environ.get("FAILING") == str(number("--tp")):
        print("error: E74 no memory", file=sys.stderr)
        sys.exit(74)
    step = 1 + 1 / number("--tp")
    print(json.dumps({"step_times_s": [step * (1 + 0.1 * (i % 3 - 1)) for i in range(number("--steps"))]}))
elif words[0] == "tokenizer":
    folder = words[words.index("--output") + 1]
    os.makedirs(folder)
    open(folder + "/vocab.txt", "w").write("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
elif words[0] == "train":
    keys = tomllib.load(open(words[1], "rb"))
    if keys["device"]["type"] == "cpu":
        subprocess.run([os.environ["REAL"], "recipe", words[1], "--ranks", str(number("--ranks"))], check=True,
                       stdout=subprocess.DEVNULL)
    model, steps, every = keys["model"], keys["train"]["steps"], keys["train"]["eval_interval"]
    last = 3 - model["hidden_size"] * model["num_layers"] / 1e3 + 0.1 * (model.get("norm_placement") == "post")
    out = words[words.index("--out") + 1]
    os.makedirs(out)
    with open(out + "/metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            print(json.dumps({"step": step, "loss": last}), file=file)
            if step == steps or every and step % every == 0:
                print(json.dumps({"step": step, "eval": "valid", "loss": last}), file=file)
)";

class Studies : public ::testing::Test {
 protected:
  void SetUp() override {
    if (support::run_shell("python3 -c 'import tomllib'").code != 0) GTEST_SKIP() << "needs Python 3.11";
    write_all(path("stand-in"), kStandIn);
    support::run_shell(str("chmod +x ", path("stand-in")));
  }
  std::string path(const std::string& name) const { return (dir_.path() / name).string(); }
  /// With `environment` as NAME=VALUE words before the command.
  Finished study(const std::string& name, const std::string& options, const std::string& environment = "") const {
    return support::run_shell(str("REAL=", support::program(), " ", environment, " '", MEGALITH_TEST_DATA,
                                  "/../../scripts/studies/", name, "' --program ", path("stand-in"), " ", options));
  }
  Finished quick(const std::string& name, const std::string& more = "", const std::string& environment = "") const {
    return study(name, str("--quick --out ", path("out"), " ", more), environment);
  }
  /// How often the program measured or trained.
  int runs() const {
    int count = 0;
    std::istringstream lines(read_all(path("calls.txt")));
    for (std::string line; std::getline(lines, line);)
      count += static_cast<int>(line.starts_with("bench") || line.starts_with("train"));
    return count;
  }
  /// Rows of OUT/name.csv by the header's names.
  std::vector<std::map<std::string, std::string>> csv(const std::string& name) const {
    const Finished got = support::run_shell(
        str("python3 -c 'import csv, json, sys; print(json.dumps(list(csv.DictReader(open(sys.argv[1])))))' ",
            path("out/" + name + ".csv")));
    EXPECT_EQ(got.code, 0) << got.err;
    return nlohmann::json::parse(got.out);
  }
  /// The names of the series of a picture that XML parses, with the number of points or bars of each.
  std::map<std::string, int> series(const std::string& name) const {
    const Finished got = support::run_shell(str(R"(python3 -c '
import json, sys, xml.etree.ElementTree as tree
svg = "{http://www.w3.org/2000/svg}"
groups = [g for g in tree.parse(sys.argv[1]).iter(svg + "g") if g.get("data-series")]
print(json.dumps({g.get("data-series"): max(len(g.findall(svg + "circle")), len(g.findall(svg + "rect")),
    *[len(line.get("points").split()) for line in g.findall(svg + "polyline")], 0) for g in groups}))' )",
                                                path("out/" + name + ".svg")));
    EXPECT_EQ(got.code, 0) << got.err;
    return nlohmann::json::parse(got.out);
  }
  TempDir dir_;
};

TEST_F(Studies, WeakScalingCountsAndNamesWhatIsNotMeasured) {
  const Finished got = quick("weak-scaling");
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("hardware count: k L (24 B s h^2 + 4 B s^2 h) + 6 B s h V, k = 3"));
  EXPECT_THAT(got.out, HasSubstr("model count: 6 x parameters x tokens"));
  const auto rows = csv("table1");
  ASSERT_EQ(rows.size(), 8U);
  const double tokens = 8 * 64, h = 192;
  const auto hardware = [&](double layers) {
    return 3 * layers * (24 * tokens * h * h + 4 * tokens * 64 * h) + 6 * tokens * h * 1024;
  };
  const auto figure = [&](std::size_t row, const char* column) { return std::stod(rows.at(row).at(column)); };
  EXPECT_NEAR(figure(1, "FLOP/s, hardware count"), hardware(8) / 1.5, 1e-3 * hardware(8));
  EXPECT_NEAR(figure(1, "FLOP/s, model count"), 6 * figure(1, "parameters") * tokens / 1.5, 1e-3 * hardware(8));
  EXPECT_EQ(rows[1].at("step median, s"), "1.5");
  EXPECT_EQ(rows[1].at("quartiles, s"), "1.35 to 1.65");
  EXPECT_NEAR(figure(1, "efficiency, %"), 100 * hardware(8) / 1.5 / (hardware(4) / 2) / 2, 0.1);
  EXPECT_EQ(rows[4].at("ranks"), "2");
  EXPECT_EQ(rows[4].at("efficiency, %"), "100.0") << "two groups, of the speed of one rank each";
  EXPECT_EQ(rows[3].at("not measured"), "needs 8 ranks, --ranks has 4");
  EXPECT_EQ(rows[3].at("paper: efficiency"), "77 %");
  EXPECT_EQ(rows[7].at("not measured"), "needs 16 ranks, --ranks has 4");
  EXPECT_EQ(rows[7].at("paper: GPUs"), "512");
  EXPECT_THAT(series("figure1"), testing::UnorderedElementsAre(testing::Pair("tensor parallel", 3),
                                                               testing::Pair("paper, tensor parallel", 2),
                                                               testing::Pair("tensor and data parallel (dp 2)", 2),
                                                               testing::Pair("paper, tensor and data parallel", 1)));
  EXPECT_THAT(series("figure5"), testing::UnorderedElementsAre(testing::Pair("tensor parallel", 3),
                                                               testing::Pair("tensor and data parallel (dp 2)", 2),
                                                               testing::Pair("paper (512: 76 % in its abstract)", 3)));
}

TEST_F(Studies, ARestartMakesOnlyWhatIsMissing) {
  ASSERT_EQ(quick("strong-scaling").code, 0);
  EXPECT_EQ(runs(), 3);
  const std::string table = read_all(path("out/table8.csv"));
  support::run_shell(str("rm ", path("out/runs/tp2.json"), " ", path("out/table8.csv")));
  const Finished again = quick("strong-scaling");
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(runs(), 4);
  EXPECT_THAT(again.err, HasSubstr("[1/4] 1 x 768 on 1 ranks: is there"));
  EXPECT_EQ(read_all(path("out/table8.csv")), table);
  const Finished other = quick("strong-scaling", "--steps 30");
  EXPECT_EQ(other.code, 66);
  EXPECT_THAT(other.err, HasSubstr("runs/tp1.json: was made with other options (20 -> 30): give another --out"));
}

TEST_F(Studies, StrongScalingAndHeadsStandBesideThePaper) {
  ASSERT_EQ(quick("strong-scaling").code, 0);
  const auto strong = csv("table8");
  ASSERT_EQ(strong.size(), 4U);
  EXPECT_EQ(strong[2].at("speed-up"), "1.60");
  EXPECT_EQ(strong[2].at("efficiency, %"), "40.0");
  EXPECT_EQ(strong[2].at("paper: speed-up"), "2.34");
  EXPECT_EQ(strong[3].at("speed-up"), "-");
  EXPECT_THAT(series("table8"),
              testing::UnorderedElementsAre(testing::Pair("here, 1 x 768", 3), testing::Pair("paper, 1.2B", 4)));
  support::run_shell(str("rm -r ", path("out")));
  const Finished heads = study("heads", str("--out ", path("out")), "GPUS=8");
  ASSERT_EQ(heads.code, 0) << heads.err;
  const auto rows = csv("table7");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].at("parameters"), "1213479936");
  for (std::size_t i : {1U, 2U, 3U}) {
    EXPECT_EQ(rows[i].at("heads"), rows[i].at("paper: heads")) << "8 ranks: the paper's own rows";
    EXPECT_EQ(rows[i].at("hidden"), "3072");
  }
  EXPECT_EQ(rows[1].at("paper: efficiency, %"), "82");
  EXPECT_THAT(series("table7"), testing::UnorderedElementsAre(testing::Pair("here, 72 x 3072 on 8 ranks", 3),
                                                              testing::Pair("paper, 8.3B on 8 GPUs", 3)));
}

TEST_F(Studies, SizesAndPlacementsOfNormsDrawCurves) {
  const Finished sizes = quick("sizes");
  ASSERT_EQ(sizes.code, 0) << sizes.err;
  EXPECT_THAT(sizes.out, HasSubstr("Larger models end lower: yes."));
  EXPECT_EQ(csv("figure6").at(2).at("paper: last perplexity of figure 6"), "9.27");
  EXPECT_THAT(series("figure6"),
              testing::UnorderedElementsAre(testing::Pair("1 x 16", 10), testing::Pair("2 x 32", 10),
                                            testing::Pair("2 x 64", 10), testing::Pair("paper, 8.3B at its end", 1)));
  const Finished norms = quick("norm-placement");
  ASSERT_EQ(norms.code, 0) << norms.err;
  EXPECT_THAT(norms.out, HasSubstr("(b) ends at or below (a): yes."));
  EXPECT_THAT(norms.out, testing::Not(HasSubstr("(b) ends at or below (a): no.")));
  EXPECT_EQ(csv("figure7").at(0).at("last training loss, nats"), "2.3320");
  EXPECT_EQ(series("figure7").size(), 4U);
  const Finished few = quick("sizes", str("--ranks 1,2 --device cpu --out ", path("few")));
  EXPECT_THAT(few.out, HasSubstr("needs 4 ranks, --ranks has 2"));
}

TEST_F(Studies, AFailureIsARowAndTheExitCode) {
  const Finished got = quick("strong-scaling", "", "FAILING=2");
  EXPECT_EQ(got.code, 74);
  EXPECT_EQ(csv("table8").at(1).at("not measured"), "failed (exit code 74): error: E74 no memory");
  EXPECT_EQ(csv("table8").at(2).at("speed-up"), "1.60");
  EXPECT_EQ(quick("strong-scaling").code, 0) << "it is measured again";
}

TEST_F(Studies, RefuseBadOptions) {
  const auto refused = [&](const Finished& got, int code, const std::string& words) {
    EXPECT_EQ(got.code, code) << got.err;
    EXPECT_THAT(got.err, testing::StartsWith("error: "));
    EXPECT_THAT(got.err, HasSubstr(words));
  };
  refused(quick("heads", "--ranks 1,x"), 64, "--ranks: '1,x': must be numbers of ranks, as 1,2,4");
  refused(quick("heads", "--steps 19"), 64, "--steps: '19': must be a number of steps, at least 20");
  refused(quick("heads", "--device cuda"), 64, "--device cuda: the program finds no GPU");
  refused(study("heads", "--quick"), 64, "the following arguments are required: --out");
  refused(quick("sizes", "--data text.txt"), 64, "--data and --valid: give both or none");
  refused(study("sizes", str("--out ", path("out")), "GPUS=1"), 64, "sizes on GPUs needs a corpus");
  refused(quick("heads", "--program /none/megalith"), 66, "/none/megalith: no such program");
}

TEST_F(Studies, MeasureWithMegalith) {
  const Finished got = quick("weak-scaling", str("--ranks 1 --program ", support::program()));
  ASSERT_EQ(got.code, 0) << got.err;
  EXPECT_EQ(csv("table1").at(0).at("efficiency, %"), "100.0");
  EXPECT_EQ(csv("table1").at(1).at("not measured"), "needs 2 ranks, --ranks has 1");
}

}  // namespace
}  // namespace megalith
