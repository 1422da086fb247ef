#include "megalith/corpus/dedup.h"

#include <set>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/corpus/normal_words.h"

#include "tests/corpus/dedup_run.h"

namespace megalith::corpus {
namespace {

using support::files_of;
using support::line;
using support::lines_of;
using support::pair_of_texts;
using support::words;

class Dedup : public ::testing::Test {
 protected:
  Dedup() { options_.memory = std::size_t{16} << 20; }
  void input(const std::string& name, const std::string& contents) {
    write_all(dir_ / name, contents);
    options_.inputs.push_back(dir_ / name);
  }
  /// Runs into a fresh folder.
  DedupReport run() {
    options_.output = dir_ / str("out", runs_++);
    return dedup(*io::posix_fs(), options_);
  }
  std::map<std::string, std::string> files() {
    run();
    auto all = files_of(options_.output);
    return all;
  }
  std::vector<std::string> kept(const std::string& name) { return lines_of(read_all(options_.output / name)); }
  nlohmann::json report() { return nlohmann::json::parse(read_all(options_.output / "report.json")); }

  TempDir dir_;
  DedupOptions options_;
  int runs_ = 0;
};

TEST_F(Dedup, CopiesCountAsOneDocumentWhereTheyAreCompared) {
  const auto [a, b] = pair_of_texts("p", 95, 100);
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += line(a) + line(b);
  input("in.jsonl", lines + line(words("q", 50)));
  const DedupReport result = run();
  EXPECT_EQ(kept("00000-in.jsonl").size(), 2u);
  EXPECT_EQ(result.total.removed, 399u);
  EXPECT_EQ(result.clusters_by_size, (std::map<std::uint64_t, std::uint64_t>{{400, 1}}));
  EXPECT_LE(result.compared, 199u + 199u + 1u) << "not 400 x 399 / 2";
}

TEST_F(Dedup, KeepsTheFirstOfAPairAndAllMembersOfALine) {
  const auto [a, b] = pair_of_texts("p", 90, 100);
  const std::string first = "{\"id\": 1.50, \"text\": \"" + a + "\", \"x\": [1,  2]}\n", other = line(words("q", 50));
  input("in.jsonl", first + "\n" + other + "{\"text\": \"" + b + "\"}");
  const DedupReport result = run();
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(read_all(options_.output / "00000-in.jsonl"), first + other);
  EXPECT_EQ(result.total.documents, 3u);
  EXPECT_EQ(result.total.removed, 1u);
  EXPECT_EQ(result.total.removed_text_bytes, b.size());
  EXPECT_EQ(result.clusters_by_size, (std::map<std::uint64_t, std::uint64_t>{{2, 1}}));
  EXPECT_EQ(result.compared, 1u);
  EXPECT_EQ(result.above, 1u);
  const std::string in = (dir_ / "in.jsonl").string();
  EXPECT_EQ(lines_of(read_all(options_.output / "removed.tsv"))[1],
            in + "\t3\t" + in + "\t1\t0.9000\t90/100\t" + in + "\t1\t0.9000\t90/100");
  EXPECT_FALSE(std::filesystem::exists(options_.output / "work")) << "removed at the end";
  EXPECT_EQ(report()["total"]["documents_out"], 2);
  EXPECT_NEAR(report()["pairs"]["expected_recall"]["0.7"].get<double>(), 0.975, 1e-3);
}

TEST_F(Dedup, FileNamesAreOneFieldOfTheList) {
  input("a\tb\nc\\d.jsonl", line(words("a", 20)) + line(words("a", 20)));
  run();
  const std::vector<std::string> list = lines_of(read_all(options_.output / "removed.tsv"));
  ASSERT_EQ(list.size(), 2u);
  EXPECT_TRUE(list[1].starts_with((dir_ / "a\\tb\\nc\\\\d.jsonl").string() + "\t2\t")) << list[1];
}

TEST_F(Dedup, ThresholdIsStrictAndInWholeNumbers) {
  std::string texts;
  for (int i = 0; i < 20; ++i) {  // 14 of 20 shingles of 21 words, and 15 of 20
    for (const int shared : {14, 15}) {
      const auto [a, b] = pair_of_texts(str("s", shared, "n", i, "x"), shared, 20);
      texts += line(a) + line(b);
    }
  }
  input("in.jsonl", texts);
  options_.banding = {60, 4};  // finds 14/20 with 1 - 1e-7
  const DedupReport result = run();
  EXPECT_EQ(result.compared, 40u);
  EXPECT_EQ(result.above, 20u);
  EXPECT_EQ(result.total.removed, 20u);
  options_.jaccard = parse_similarity("0.6999");
  EXPECT_EQ(run().total.removed, 40u);
}

// 100 pairs of each similarity and 5 seeds: none at or under the threshold goes, and those above are found as often as
// 20 x 5 promises (0.978 at 0.705; the bounds are four standard deviations below).
TEST_F(Dedup, FindsPlantedPairsAndNothingElse) {
  struct Planted {
    int per_mille;
    double min_found;
  };
  const std::vector<Planted> all{{300, 0},    {500, 0},     {650, 0},     {695, 0}, {700, 0}, {705, 0.95},
                                 {720, 0.95}, {750, 0.985}, {800, 0.995}, {900, 1}, {950, 1}, {1000, 1}};
  std::string texts;
  std::vector<int> planted_as;  // of every second document
  for (const Planted& planted : all)
    for (int i = 0; i < 100; ++i) {
      const int either = 400 + 200 * (i % 4);  // 300 to 1,000 words
      const auto [a, b] =
          pair_of_texts(str("j", planted.per_mille, "n", i, "x"), planted.per_mille * either / 1000, either);
      texts += line(a) + line(b);
      planted_as.push_back(planted.per_mille);
    }
  input("in.jsonl", texts);
  std::map<int, int> found;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    options_.seed = seed;
    const DedupReport result = run();
    EXPECT_EQ(result.above, result.total.removed) << "no chains";
    const std::vector<std::string> removed = lines_of(read_all(options_.output / "removed.tsv"));
    for (std::size_t i = 1; i < removed.size(); ++i) {
      const auto document = std::stoul(removed[i].substr(removed[i].find('\t') + 1));
      EXPECT_EQ(document % 2, 0u) << "the second of a pair";
      ++found[planted_as[document / 2 - 1]];
    }
  }
  for (const Planted& planted : all) {
    const double share = found[planted.per_mille] / 500.0;
    if (planted.min_found == 0)
      EXPECT_EQ(share, 0) << planted.per_mille;
    else
      EXPECT_GE(share, planted.min_found) << planted.per_mille;
  }
}

// Against a loop over all pairs: texts that are mixed from few sentences, so that there are pairs of every similarity.
TEST_F(Dedup, ComparesAsALoopOverAllPairsDoes) {
  const RandomSite site{.seed = 11};
  std::vector<std::string> texts;
  std::uint64_t drawn = 0;
  for (int i = 0; i < 120; ++i) {
    std::string text;
    for (int s = 0; s < 12; ++s) text += words(str("s", site.word(drawn++) % (i % 3 == 0 ? 400 : 14)), 12) + ". ";
    texts.push_back(text);
    if (i % 4 == 1) texts.push_back(text.substr(0, text.size() - 60 - site.word(drawn++) % 200));
  }
  std::vector<std::vector<std::uint64_t>> sets;
  std::string all;
  for (const std::string& text : texts) {
    NormalWords normal;
    normal.read(text);
    std::vector<std::uint64_t> set;
    append_shingles(normal.hashes(), 5, set);
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    sets.push_back(set);
    all += line(text);
  }
  std::set<std::size_t> removed;
  std::uint64_t above = 0;
  for (std::size_t b = 0; b < sets.size(); ++b)
    for (std::size_t a = 0; a < b; ++a) {
      const Overlap found = overlap(sets[a].data(), sets[a].size(), sets[b].data(), sets[b].size());
      if (10 * found.shared > 7 * found.either) ++above, removed.insert(b);
    }
  ASSERT_GT(removed.size(), 20u);
  ASSERT_LT(removed.size(), 60u);
  input("in.jsonl", all);
  options_.banding = {85, 3};
  const DedupReport result = run();
  EXPECT_EQ(result.above, above);
  // A document above the threshold with an earlier one is never the first of its cluster.
  EXPECT_EQ(result.total.removed, removed.size());
}

TEST_F(Dedup, ACopiedDocumentStaysOnce) {
  std::string texts;
  for (int i = 0; i < 1000; ++i) texts += line(words("copy", 40)) + line(words(str("own", i, "x"), 40));
  input("in.jsonl", texts);
  const DedupReport result = run();
  EXPECT_EQ(result.total.removed, 999u);
  EXPECT_EQ(result.clusters_by_size, (std::map<std::uint64_t, std::uint64_t>{{1000, 1}}));
  EXPECT_EQ(result.compared, 999u) << "each copy with the first";
}

/// a ~ b ~ c, but a and c share 60 of 100 shingles.
std::vector<std::string> chain() {
  const std::string middle = words("m", 84);  // 80 shingles
  return {words("a", 10) + " " + words("m", 70), middle, [] {
            std::string tail;
            for (int i = 14; i < 84; ++i) tail += str("mw", i, " ");
            return tail + words("c", 10);
          }()};
}

TEST_F(Dedup, AChainIsOneClusterAndTheListNamesBothSimilarities) {
  const auto texts = chain();
  input("in.jsonl", line(texts[0]) + line(texts[1]) + line(texts[2]));
  options_.banding = {60, 4};
  const DedupReport result = run();
  EXPECT_EQ(result.total.removed, 2u);
  EXPECT_EQ(result.above, 2u);
  EXPECT_EQ(kept("00000-in.jsonl"), (std::vector<std::string>{lines_of(line(texts[0]))[0]}));
  const std::vector<std::string> list = lines_of(read_all(options_.output / "removed.tsv"));
  ASSERT_EQ(list.size(), 3u);
  EXPECT_NE(list[1].find("\t2\t"), std::string::npos);
  EXPECT_NE(list[2].find("52/100"), std::string::npos) << "with the one that stays: " << list[2];
  EXPECT_NE(list[2].find("66/90"), std::string::npos) << "with its nearest: " << list[2];
}

TEST_F(Dedup, KeepsTheLongestIfAsked) {
  const auto texts = chain();
  input("in.jsonl", line(texts[0]) + line(texts[1]) + line(texts[2]));
  options_.banding = {60, 4};
  options_.keep = Keep::longest;
  run();
  EXPECT_EQ(kept("00000-in.jsonl"), (std::vector<std::string>{lines_of(line(texts[1]))[0]}));
}

TEST_F(Dedup, KeepsTheFirstOfTheLongest) {
  // Four texts of one length, and a shorter one before them.
  const std::string common = words("c", 100);
  std::string texts = line(common + " end");
  for (const char* own : {"d", "a", "c", "b"}) texts += line(common + " " + words(own, 2));
  input("in.jsonl", texts);
  options_.banding = {60, 4};
  options_.keep = Keep::longest;
  EXPECT_EQ(run().total.removed, 4u);
  EXPECT_EQ(kept("00000-in.jsonl"), (std::vector<std::string>{lines_of(texts)[1]}));
  const auto removed = lines_of(read_all(options_.output / "removed.tsv"));
  ASSERT_EQ(removed.size(), 5u);
  for (std::size_t i = 1; i < removed.size(); ++i)  // under a line of names
    EXPECT_NE(removed[i].find("in.jsonl\t2\t"), std::string::npos) << removed[i];
}

TEST_F(Dedup, ShortAndEmptyDocumentsAreOneShingle) {
  input("in.jsonl", line("a b c") + line("A, b; c!") + line("a b") + line("") + line("...") + line("a b c d e"));
  const DedupReport result = run();
  EXPECT_EQ(kept("00000-in.jsonl"), (std::vector<std::string>{R"({"text": "a b c"})", R"({"text": "a b"})",
                                                              R"({"text": ""})", R"({"text": "a b c d e"})"}));
  EXPECT_EQ(result.total.without_words, 2u);
}

TEST_F(Dedup, TextFilesAreDocumentsAndBecomeLines) {
  const auto [a, b] = pair_of_texts("p", 90, 100);
  input("one.txt", a + "\n\t\"quoted\" \\ \u00E9\n");
  input("two.txt", b);
  input("empty.txt", "");
  input("three.jsonl", line(b) + line(words("z", 9)));
  run();
  EXPECT_EQ(read_all(options_.output / "00000-one.jsonl"),
            "{\"text\": \"" + a + "\\n\\t\\\"quoted\\\" \\\\ \u00E9\\n\"}\n");
  EXPECT_EQ(read_all(options_.output / "00001-two.jsonl"), "");
  EXPECT_EQ(read_all(options_.output / "00002-empty.jsonl"), "{\"text\": \"\"}\n");
  EXPECT_EQ(read_all(options_.output / "00003-three.jsonl"), line(words("z", 9)));
}

TEST_F(Dedup, CrowdedBucketsAreComparedWithLeaders) {
  std::string texts;
  for (int i = 0; i < 50; ++i) texts += line(words("copy", 40)) + line(words(str("own", i, "x"), 40));
  input("in.jsonl", texts);
  const auto whole = files();
  options_.max_bucket = 10;
  const DedupReport result = run();
  EXPECT_EQ(result.total.removed, 49u);
  EXPECT_EQ(result.crowded_buckets, 20u) << "one per band";
  EXPECT_EQ(result.compared, 20u * 49);
  EXPECT_EQ(result.not_compared, 20u * (50 * 49 / 2 - 49));
  EXPECT_EQ(files_of(options_.output).at("00000-in.jsonl"), whole.at("00000-in.jsonl"));
}

TEST_F(Dedup, ACrowdedBucketOfTwoClustersKeepsBoth) {
  // Both clusters share half of their shingles, so that one bucket of the only band holds them, one after the other.
  std::string texts;
  const auto text_of = [](const std::string& cluster, int own) {
    return line(words("shared", 204) + " " + words(cluster, 100) + " " + words(str(cluster, "own", own, "x"), 2));
  };
  for (int i = 0; i < 6; ++i) texts += text_of("a", i) + text_of("b", i);
  input("in.jsonl", texts);
  options_.banding = {1, 1};
  options_.max_bucket = 3;
  int in_one_bucket = 0;
  for (options_.seed = 0; options_.seed < 8; ++options_.seed) {
    const DedupReport result = run();
    if (result.crowded_buckets != 1) continue;  // the least hash is of what a cluster has for itself
    ++in_one_bucket;
    EXPECT_EQ(result.total.removed, 10u) << options_.seed;
    EXPECT_EQ(result.clusters_by_size, (std::map<std::uint64_t, std::uint64_t>{{6, 2}})) << options_.seed;
    // The first of a is compared with nothing, the first of b and each other a with it, each other b with both.
    EXPECT_EQ(result.compared, 1u + 5u + 2u * 5u) << options_.seed;
    const auto lines = lines_of(texts);
    EXPECT_EQ(kept("00000-in.jsonl"), (std::vector<std::string>{lines[0], lines[1]})) << options_.seed;
  }
  EXPECT_GE(in_one_bucket, 2);
}

TEST_F(Dedup, GivesTheSameBytesWhateverTheThreadsMemoryAndShards) {
  for (int file = 0; file < 4; ++file) {
    std::string texts;
    for (int i = 0; i < 60; ++i) {
      const auto [a, b] = pair_of_texts(str("p", i, "x"), 60 + i % 40, 100);
      texts += line(file % 2 == 0 ? a : b) + line(words(str("f", file, "n", i, "x"), 30));
    }
    input(str("in", file, ".jsonl"), texts);
  }
  options_.reading.block_bytes = 2000;
  const auto want = files();
  EXPECT_GT(lines_of(want.at("removed.tsv")).size(), 50u);
  for (const int threads : {2, 7}) {
    options_.threads = threads;
    EXPECT_TRUE(files() == want) << threads << " threads";
  }
  options_.threads = 1;
  options_.memory = std::size_t{1} << 30;
  EXPECT_TRUE(files() == want) << "1 GiB";
  options_.reading.block_bytes = 1 << 20;
  EXPECT_TRUE(files() == want) << "larger blocks";

  options_.output = dir_ / "ranks";
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 3; ++rank)
      ranks.emplace_back([&, rank] {
        DedupOptions mine = options_;
        mine.share = {.rank = rank, .count = 3};
        EXPECT_TRUE(dedup(*io::posix_fs(), mine).is_complete);
      });
  }
  EXPECT_TRUE(files_of(options_.output) == want) << "3 ranks";

  options_.output = dir_ / "shards";
  int rounds = 0;
  for (bool is_complete = false; !is_complete; ++rounds) {
    ASSERT_LT(rounds, 20);
    for (const int shard : {3, 0, 4, 1, 2}) {
      options_.share = {.rank = shard, .count = 5, .others = Share::Others::leave};
      is_complete |= dedup(*io::posix_fs(), options_).is_complete && shard == 0;
    }
  }
  EXPECT_TRUE(files_of(options_.output) == want) << "5 shards";
}

TEST_F(Dedup, ADryRunWritesTheReportOnly) {
  input("in.jsonl", line(words("a", 20)) + line(words("a", 20)));
  options_.write = DedupOptions::Write::report_only;
  run();
  EXPECT_TRUE(files_of(options_.output).empty());
  EXPECT_EQ(report()["total"]["documents_removed"], 1);
}

TEST_F(Dedup, ErrorsNameFileAndLineAndLeaveNothingBehindTheirName) {
  input("in.jsonl", line("fine") + "{\"txt\": 1}\n");
  EXPECT_EQ(error_of<InputError>([&] { run(); }),
            str("[", (dir_ / "in.jsonl").string(),
                "] line 2, key \"text\": is missing; did you mean txt?"
                " --key, or data.key of a recipe, names the one that holds the text"));
  EXPECT_TRUE(files_of(options_.output).empty());
  write_all(dir_ / "bad.txt", "good \xFF");
  options_.inputs = {dir_ / "bad.txt"};
  EXPECT_NE(error_of<InputError>([&] { run(); }).find("bad.txt] byte 5 must be UTF-8"), std::string::npos);
  options_.inputs = {dir_ / "in.jsonl"};
  options_.reading.max_document_bytes = 8;
  options_.reading.block_bytes = 4;
  EXPECT_NE(error_of<InputError>([&] { run(); }).find("line 1 has over 8 bytes"), std::string::npos);
  options_.inputs = {dir_ / "no.jsonl"};
  EXPECT_NE(error_of<InputError>([&] { run(); }).find("no.jsonl: there is no such file"), std::string::npos);
}

TEST_F(Dedup, RefusesBadSettings) {
  input("in.jsonl", line("a"));
  for (const char* jaccard : {"0", "1", "0.0", "1.0", "-0.5", ".x", "2", "0.7a", "0.00000000001", ""})
    EXPECT_NE(error_of<ConfigError>([&] { parse_similarity(jaccard); }), "") << jaccard;
  EXPECT_EQ(parse_similarity("0.70").denominator, 10u) << "the same setting as 0.7";
  EXPECT_EQ(parse_similarity("0.705").denominator, 1000u);
  EXPECT_EQ(parse_similarity(".7").numerator, 7u);
  options_.shingle = 0;
  options_.memory = 1 << 20;
  const std::string text = error_of<ConfigError>([&] { run(); });
  EXPECT_NE(text.find("--shingle = 0"), std::string::npos);
  EXPECT_NE(text.find("--memory = 1.00 MiB: must be at least 8208KiB for 1 input files"), std::string::npos) << text;
  options_.shingle = 5;
  options_.memory = 16 << 20;
  options_.output = dir_.path();
  EXPECT_NE(error_of<ConfigError>([&] { dedup(*io::posix_fs(), options_); }).find("has files (in.jsonl)"),
            std::string::npos);
}

}  // namespace
}  // namespace megalith::corpus
