// The commands on corpora as processes: a full disk, several processes, exit codes.
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/io/run_lock.h"

#include "tests/apps/process.h"
#include "tests/corpus/dedup_run.h"
#include "tests/support/sweep.h"
#include "tests/test_data.h"

namespace megalith::support {
namespace {

class CorpusCommands : public ::testing::Test {
 protected:
  CorpusCommands() {
    for (const char* name : {"one", "two"}) {
      std::string lines;
      for (int i = 0; i < 30; ++i) {
        const auto [a, b] = pair_of_texts(str(name, i, "x"), 60 + i, 100);
        lines += line(a) + line(b) + line(words("copy", 20));
      }
      write_all(dir_ / str(name, ".jsonl"), lines);
    }
    write_all(dir_ / "short.jsonl", line(words("a", 30)) + line(words("b", 40)));
  }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string inputs() const { return path("one.jsonl") + " " + path("two.jsonl"); }
  std::string dedup(const std::string& output, const std::string& more = "") const {
    const std::string memory = more.find("--memory") == more.npos ? " --memory 16MiB " : " ";
    return " data dedup --input " + inputs() + " --output " + path(output) + memory + more;
  }
  /// A command that writes to the folder `output`.
  std::string command(const std::string& kind, const std::string& output) const {
    const std::string to = " --output " + path(output);
    if (kind == "clean") return "data clean --input " + inputs() + to + " --join-lines";
    if (kind == "dedup") return dedup(output);
    if (kind == "overlap") return "data overlap --train " + inputs() + " --test " + path("short.jsonl") + to;
    if (kind == "build") return "data build --tokenizer byte --input " + inputs() + to + "/tokens";
    return "tokenizer train --type bpe --vocab-size 300 --input " + inputs() + to;
  }
  /// Files with final names.
  std::set<std::string> names_in(const std::string& output) const {
    std::set<std::string> names;
    if (std::filesystem::exists(dir_ / output))
      for (const auto& entry : std::filesystem::directory_iterator(dir_ / output))
        if (const std::string name = entry.path().filename().string();
            name.front() != '.' && name.find(".tmp-") == name.npos && entry.is_regular_file())
          names.insert(name);
    return names;
  }
  TempDir dir_;
};

class FullDisk : public CorpusCommands, public ::testing::WithParamInterface<const char*> {};

// Each operation in turn fails, then half of it happens before it fails; what is freed afterwards, is freed.
TEST_P(FullDisk, EndsIn74WithNothingUnderItsFinalName) {
  ASSERT_EQ(run_shell("mkdir -p " + path("want") + "; megalith " + command(GetParam(), "want")).code, 0);
  const std::set<std::string> want = names_in("want");
  ASSERT_GT(want.size(), 1u);
  constexpr int kMax = 2000;
  for (const char* action : {":ENOSPC", ":short"}) {
    int failed = 0;
    // Some failures are made up for: of what only tidies up. So the end is where the run has fewer operations.
    for (int n = 1, whole = 0; whole < 8 && n < kMax; n += sweep_stride(11)) {
      const std::string output = str("out", n);
      const Finished run = run_shell("mkdir -p " + path(output) + "; export MEGALITH_FAULT='*:*:" + str(n, action) +
                                     "'; megalith " + command(GetParam(), output));
      if (run.code == 74) {
        ++failed;
        whole = 0;
        const std::set<std::string> names = names_in(output);
        EXPECT_TRUE(names.empty()) << *names.begin() << ", operation " << n << action << '\n' << run.err;
      } else {
        ++whole;
        EXPECT_EQ(run.code, 0) << "operation " << n << action << '\n' << run.err;
        EXPECT_EQ(names_in(output), want) << "operation " << n << action;
      }
      std::filesystem::remove_all(dir_ / output);
    }
    EXPECT_GT(failed, 2) << action;
  }
}
INSTANTIATE_TEST_SUITE_P(Corpora, FullDisk, ::testing::Values("clean", "dedup", "overlap", "build", "train"));

TEST_F(CorpusCommands, ABuildRemovesWhatAKilledOneOfItsPrefixHasLeft) {
  const io::Path folder = dir_ / "build";
  std::filesystem::create_directory(folder);
  const std::string unique = ".tmp-0123456789abcdef";
  for (const char* name : {"tokens.bin", "tokens.idx", "tokens2.bin"}) write_all(folder / (name + unique), "half");
  write_all(folder / "tokens.bin.tmp-mine", "kept");
  {
    const io::RunLock first = io::RunLock::take(folder, ".tokens.lock");
    const Finished second = run_shell("megalith " + command("build", "build"));
    EXPECT_EQ(second.code, 74) << second.err;
    EXPECT_NE(second.err.find("the folder is in use by host "), std::string::npos) << second.err;
    EXPECT_TRUE(std::filesystem::exists(folder / ("tokens.bin" + unique))) << "the first job's";
  }
  const Finished run = run_shell("megalith " + command("build", "build"));
  EXPECT_EQ(run.code, 0) << run.err;
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename().string());
  EXPECT_EQ(names, (std::set<std::string>{"tokens.bin", "tokens.bin.tmp-mine", "tokens.idx", "tokens.report.json",
                                          "tokens2.bin" + unique}));
}

TEST_F(CorpusCommands, CleanWarnsWhereParquetHidesTitles) {
  write_all(dir_ / "titles", "A title\n");
  write_all(dir_ / "rows.parquet", "PAR1 and no more");
  const std::string titles = " --drop-titles " + path("titles"), warning = "warning: ";
  const Finished parquet =
      run_shell("megalith data clean --input " + path("rows.parquet") + " --output " + path("rows") + titles);
  EXPECT_NE(parquet.err.find(warning + path("rows.parquet") + ": of Parquet only the column --key = text is read"),
            std::string::npos)
      << parquet.err;
  const Finished lines = run_shell("megalith " + command("clean", "lines") + titles);
  EXPECT_EQ(lines.code, 0);
  EXPECT_EQ(lines.err.find(warning), std::string::npos) << lines.err;
}

TEST_F(CorpusCommands, DedupPrintsHowShardsCount) {
  const std::string rule = "K counts from 0 or from 1; N/N is the same part as 0/N";
  const Finished refused = run_shell("megalith" + dedup("shard", "--shard 6/5"));
  EXPECT_EQ(refused.code, 64);
  EXPECT_NE(refused.err.find(rule), std::string::npos) << refused.err;
}

TEST_F(CorpusCommands, DedupTakesTheMemoryThatItPrints) {
  const Finished refused = run_shell("megalith" + dedup("small", "--memory 8MiB"));
  ASSERT_EQ(refused.code, 64);
  const std::string before = "must be at least ";
  const std::size_t at = refused.err.find(before);
  ASSERT_NE(at, std::string::npos) << refused.err;
  const std::size_t begin = at + before.size();
  const std::string least = refused.err.substr(begin, refused.err.find(' ', begin) - begin);
  const Finished taken = run_shell("megalith" + dedup("small", "--memory " + least));
  EXPECT_EQ(taken.code, 0) << least << taken.err;
}

TEST_F(CorpusCommands, ARunReplacesTheReportOfItsDryRun) {
  for (const char* kind : {"clean", "dedup", "overlap", "train"}) {
    ASSERT_EQ(run_shell("megalith " + command(kind, "plain")).code, 0);
    const Finished dry = run_shell("megalith " + command(kind, kind) + " --dry-run");
    ASSERT_EQ(dry.code, 0) << dry.err;
    EXPECT_EQ(names_in(kind), (std::set<std::string>{"report.json"}));
    const Finished run = run_shell("megalith " + command(kind, kind));
    EXPECT_EQ(run.code, 0) << kind << run.err;
    EXPECT_TRUE(files_of(dir_ / kind) == files_of(dir_ / "plain")) << kind;
    const auto report = nlohmann::json::parse(read_all(dir_ / kind / "report.json"));
    EXPECT_EQ(report["settings"]["dry_run"], false) << kind;
    const Finished again = run_shell("megalith " + command(kind, kind) + " --dry-run");
    EXPECT_EQ(again.code, 64) << kind << " has its files" << again.err;
    std::filesystem::remove_all(dir_ / "plain");
  }
}

TEST_F(CorpusCommands, DedupGivesTheSameBytesForThreadsProcessesAndShards) {
  ASSERT_EQ(run_shell("megalith" + dedup("want")).code, 0);
  const auto want = files_of(dir_ / "want");
  ASSERT_EQ(want.size(), 3u);
  for (const char* more : {"--threads 2", "--threads 7"}) {
    const std::string output = str("threads", more[10]);
    ASSERT_EQ(run_shell("megalith" + dedup(output, more)).code, 0);
    EXPECT_TRUE(files_of(dir_ / output) == want) << more;
  }
  int starts = 0;
  for (bool is_complete = false; !is_complete && starts < 100;)
    for (int k = 1; k <= 5; ++k, ++starts) {
      const Finished run = run_shell("megalith" + dedup("shards", str("--shard ", k, "/5")));
      ASSERT_EQ(run.code, 0) << run.err;
      is_complete = is_complete || std::filesystem::exists(dir_ / "shards" / "report.json");
    }
  EXPECT_TRUE(files_of(dir_ / "shards") == want) << starts;
  EXPECT_GT(starts, 5);
#ifdef MEGALITH_WITH_MPI
  const Finished run = run_shell(mpirun(3, program() + dedup("processes")));
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(files_of(dir_ / "processes") == want);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "processes" / "work"));
#endif
}

/// Takes out what a clock and the number of threads decide, and counts it.
int without_times(nlohmann::json& report) {
  int taken = 0;
  if (report.is_object()) {
    for (const char* name : {"seconds", "text_mb_per_s", "run"}) taken += static_cast<int>(report.erase(name));
  }
  for (nlohmann::json& inner : report)
    if (inner.is_structured()) taken += without_times(inner);
  return taken;
}

TEST_F(CorpusCommands, ReportsAreTheSameForAnyThreadsButForTimes) {
  for (const char* kind : {"clean", "dedup", "overlap", "build", "train"}) {
    nlohmann::json reports[2];
    for (int i = 0; i < 2; ++i) {
      const std::string output = str("report-", kind);
      std::filesystem::remove_all(dir_ / output);
      const Finished run = run_shell("mkdir -p " + path(output) + "; megalith " + command(kind, output) +
                                     (i == 0 ? "" : " --threads 3"));
      ASSERT_EQ(run.code, 0) << kind << run.err;
      EXPECT_NE(run.out.find("  "), std::string::npos) << kind << ": a table";
      const char* const name = std::string_view(kind) == "build" ? "tokens.report.json" : "report.json";
      reports[i] = nlohmann::json::parse(read_all(dir_ / output / name));
    }
    EXPECT_EQ(reports[1]["run"]["threads"], 3) << kind;
    for (const char* key : {"command", "key", "input_format", "max_line", "dry_run"})
      EXPECT_TRUE(reports[0]["settings"].contains(key)) << kind << ' ' << key;
    EXPECT_TRUE(reports[0].contains("version")) << kind;
    const auto is_timed = [&](const nlohmann::json& one) {
      return one["seconds"].is_number() && one["seconds"] > 0 && one["text_mb_per_s"].is_number();
    };
    const nlohmann::json& files =
        std::string_view(kind) == "overlap" ? reports[0]["train"]["files"] : reports[0]["files"];
    ASSERT_EQ(files.size(), 2u) << kind;
    for (const nlohmann::json& file : files) {
      EXPECT_TRUE(is_timed(file)) << kind << file;
      EXPECT_GT(file["stored_bytes"], 1000) << kind;
    }
    EXPECT_TRUE(is_timed(reports[0]["stages"][0])) << kind;
    EXPECT_GE(without_times(reports[0]), 7) << kind;
    without_times(reports[1]);
    EXPECT_EQ(reports[0], reports[1]) << kind;
  }
}

TEST_F(CorpusCommands, BadSettingsEndIn64AndWriteNothing) {
  const std::string in = " --input " + inputs() + " --output " + path("out") + " ";
  std::filesystem::create_directories(dir_ / "full");
  write_all(dir_ / "full" / "file", "x");
  const struct {
    std::string arguments, text;
  } cases[] = {
      {"data dedup" + in + "--jaccard 1.0", "--jaccard"},
      {"data dedup" + in + "--jaccard 0", "--jaccard"},
      {"data dedup" + in + "--shingle 0", "--shingle"},
      {"data dedup" + in + "--bands 10", "--bands and --rows must be given together"},
      {"data dedup" + in + "--bands 10 --rows 10", "finds 0.249 of the pairs"},
      {"data dedup" + in + "--memory 1MiB", "--memory"},
      {"data dedup --input " + inputs() + " --output " + path("full"), "has files (file)"},
      {"data clean --input " + inputs() + " --output " + path("full"), "has files (file)"},
      {"data clean" + in + "--min-tokens 5", "tokenizer"},
      {"data overlap --train " + inputs() + " --test " + inputs() + " --output " + path("out") + " --ngram 0",
       "--ngram"},
      {"tokenizer train --type bpe --vocab-size 256" + in, "vocab-size"},
      {"tokenizer train --type no --vocab-size 300" + in, "--type"},
      {"data dedup" + in + "--bands 134217728 --rows 32", "--bands"},
      {"data dedup" + in + "--bands 44739243 --rows 48 --recall 0.5", "--bands"},
      {"data dedup" + in + "--memory -1", "--memory"},
      {"data dedup" + in + "--seed -1", "--seed"},
      {"data clean" + in + "--max-line -5", "--max-line"},
      {"data build --tokenizer byte" + in + "--max-line 0", "--max-line"},
      {"tokenizer train --type bpe --vocab-size 300" + in + "--memory -1", "--memory"},
  };
  for (const auto& [arguments, text] : cases) {
    const Finished run = run_shell("megalith " + arguments);
    EXPECT_EQ(run.code, 64) << arguments << '\n' << run.err;
    EXPECT_NE(run.err.find(text), std::string::npos) << arguments << '\n' << run.err;
    EXPECT_TRUE(names_in("out").empty()) << arguments;
  }
}

TEST_F(CorpusCommands, TablesAreRefused) {
  for (const char* name : {"rows.csv", "rows.tsv", "rows.tab", "ROWS.CSV", "rows.csv.gz"}) {
    std::filesystem::create_directories(dir_ / "folder");
    write_all(dir_ / "folder" / "a.txt", "some text");
    write_all(dir_ / "folder" / name, "id,text\n1,one\n");
    const std::string table = path("folder") + "/" + name, to = " --output " + path("out");
    for (const std::string& input : {table, path("folder")}) {
      const std::vector<std::string> commands = {"data clean --input " + input + to,
                                                 "data dedup --input " + input + to,
                                                 "data overlap --train " + inputs() + " --test " + input + to,
                                                 "data overlap --test " + inputs() + " --train " + input + to,
                                                 "data build --tokenizer byte --input " + input + to + "/tokens",
                                                 "tokenizer train --type bpe --vocab-size 300 --input " + input + to};
      for (const std::string& command : commands) {
        const Finished run = run_shell("mkdir -p " + path("out") + "; megalith " + command);
        EXPECT_EQ(run.code, 65) << command << '\n' << run.err;
        const std::string kind = std::string(name).find(".t") == std::string::npos ? "CSV" : "TSV";
        EXPECT_NE(
            run.err.find("error: E65 [" + table + "] is a table (" + kind +
                         "), whose columns are not read: write its rows as lines of JSON, {\"text\": \"...\"}, to "
                         "a .jsonl file, or as Parquet; a file named .txt is taken as plain text"),
            std::string::npos)
            << command << '\n'
            << run.err;
        EXPECT_TRUE(names_in("out").empty()) << command;
      }
    }
    EXPECT_EQ(run_shell("megalith tokenize --tokenizer byte " + table).code, 65) << name;
    std::filesystem::remove(dir_ / "folder" / name);
  }
  write_all(dir_ / "rows.csv", "id,text\n1,one\n");
  EXPECT_EQ(run_shell("megalith data build --tokenizer byte --input-format text --input " + path("rows.csv") +
                      " --output " + path("out") + "/tokens")
                .code,
            0)
      << "as text where that is asked for";
}

TEST_F(CorpusCommands, AKeyIsOfJsonLinesAndParquet) {
  write_all(dir_ / "a.txt", "some text of several words");
  write_all(dir_ / "b.jsonl", "{\"body\": \"one two three\", \"text\": \"no\"}\n");
  const auto commands = [&](const std::string& input, const std::string& more) {
    const std::string to = " --output " + path("out"), with = more + to;
    return std::vector<std::string>{"data clean --input " + input + with,
                                    "data dedup --input " + input + with,
                                    "data overlap --train " + input + " --test " + input + with,
                                    "data build --tokenizer byte --input " + input + more + to + "/tokens",
                                    "tokenizer train --type bpe --vocab-size 260 --input " + input + with,
                                    "tokenizer info --tokenizer gpt2 " + std::string(MEGALITH_TEST_DATA) +
                                        "/../../share/gpt2 --text " + input + more,
                                    "tokenize --tokenizer byte " + input + more};
  };
  for (const std::string more : {" --key body", " --key text", " --key=body --input-format text"})
    for (const std::string& command : commands(path("a.txt"), more)) {
      const Finished run = run_shell("mkdir -p " + path("out") + "; megalith " + command);
      EXPECT_EQ(run.code, 64) << command << '\n' << run.err;
      EXPECT_NE(run.err.find("error: --key = " + std::string(more.find("body") != more.npos ? "body" : "text")),
                std::string::npos)
          << run.err;
      EXPECT_TRUE(names_in("out").empty()) << command;
    }
  for (const std::string& command : commands(path("b.jsonl"), " --key body")) {
    const Finished run = run_shell("rm -rf " + path("out") + "; mkdir -p " + path("out") + "; megalith " + command);
    EXPECT_EQ(run.code, 0) << command << '\n' << run.err;
  }
  const Finished both = run_shell("rm -rf " + path("out") + "; megalith data clean --key body --input " +
                                  path("a.txt") + " " + path("b.jsonl") + " --output " + path("out"));
  EXPECT_EQ(both.code, 0) << both.err;
}

TEST_F(CorpusCommands, ValuesInBracketsStayAsTheyAreGiven) {
  const std::string in = " --input " + inputs() + " --output " + path("out");
  const Finished run = run_shell("megalith tokenizer train --type wordpiece --vocab-size 300" + in +
                                 " --special '[unused0]' '[a,b]' plain --special='[last]'");
  ASSERT_EQ(run.code, 0) << run.err;
  const Finished vocabulary = run_shell("cat " + path("out") + "/vocab.txt");
  for (const char* token : {"[unused0]\n", "[a,b]\n", "plain\n", "[last]\n"})
    EXPECT_NE(vocabulary.out.find(token), std::string::npos) << token;
}

TEST_F(CorpusCommands, ADryRunWritesTheReportOnly) {
  for (const char* kind : {"clean", "dedup", "overlap", "build", "train"}) {
    const std::string output = str("dry-", kind);
    const Finished run = run_shell("mkdir -p " + path(output) + "; megalith " + command(kind, output) + " --dry-run");
    ASSERT_EQ(run.code, 0) << kind << run.err;
    const char* const report = std::string_view(kind) == "build" ? "tokens.report.json" : "report.json";
    EXPECT_EQ(names_in(output), std::set<std::string>{report}) << kind;
  }
}

TEST_F(CorpusCommands, AMendedInputStartsAnew) {
  const std::string good = line(words("a", 30)) + line(words("b", 40)), output = " --output " + path("out");
  write_all(dir_ / "bad.jsonl", good + "no JSON\n");
  ASSERT_EQ(run_shell("megalith data dedup --input " + path("bad.jsonl") + output).code, 65);
  write_all(dir_ / "bad.jsonl", good);
  const Finished run = run_shell("megalith data dedup --input " + path("bad.jsonl") + output);
  EXPECT_EQ(run.code, 0) << run.err;
}

TEST_F(CorpusCommands, WhatAKilledAttemptLeftIsNoOutput) {
  for (const char* kind : {"clean", "overlap", "train"}) {
    const std::string output = str("left-", kind);
    std::filesystem::create_directories(dir_ / output);
    write_all(dir_ / output / ".report.json.tmp", "half");
    const Finished run = run_shell("megalith " + command(kind, output));
    EXPECT_EQ(run.code, 0) << kind << run.err;
    EXPECT_FALSE(std::filesystem::exists(dir_ / output / ".report.json.tmp")) << kind;
  }
}

TEST_F(CorpusCommands, BadInputEndsIn65AndWritesNothing) {
  const std::string good = line(words("good", 10));
  const struct {
    std::string name, contents, text;
  } cases[] = {
      {"array.jsonl", good + "[1, 2]\n", "line 2"},
      {"other.jsonl", good + "{\"texts\": \"a\"}\n", "line 2"},
      {"twice.jsonl", good + "{\"text\": \"a\", \"text\": \"b\"}\n", "line 2"},
      {"number.jsonl", good + "{\"text\": 7}\n", "line 2"},
      {"surrogate.jsonl", good + "{\"text\": \"\\ud800\"}\n", "line 2"},
      {"utf8.jsonl", good + "{\"text\": \"\xFF\"}\n", "line 2"},
      {"cut.jsonl.gz", std::string("\x1F\x8B\x08\0\0\0\0\0\0\x03K", 11), "compressed file"},
      {"empty.jsonl.zst", "", "is empty"},
      {"file.parquet", "PAR1....PAR1", "footer"},
      {"a.warc", "WARC/1.0\r\n", "WARC"},
  };
  for (const auto& [name, contents, text] : cases) {
    write_all(dir_ / name, contents);
    const std::string in = path(name), to = " --output " + path("out");
    for (const std::string& arguments : {"data clean --join-lines --input " + in + to, "data dedup --input " + in + to,
                                         "data overlap --test " + inputs() + " --train " + in + to,
                                         "data overlap --train " + inputs() + " --test " + in + to,
                                         "data build --tokenizer byte --input " + in + to + "/tokens",
                                         "tokenizer train --type bpe --vocab-size 300 --input " + in + to}) {
      const Finished run = run_shell("mkdir -p " + path("out") + "; megalith " + arguments);
      EXPECT_EQ(run.code, 65) << arguments << '\n' << run.err;
      EXPECT_NE(run.err.find(name), std::string::npos) << arguments << '\n' << run.err;
      EXPECT_NE(run.err.find(text), std::string::npos) << arguments << '\n' << run.err;
      EXPECT_TRUE(names_in("out").empty()) << arguments;
      std::filesystem::remove_all(dir_ / "out");
    }
  }
}

// The tokens of --special are listed, and --text is read as data build reads it: a line's text, not the line.
TEST_F(CorpusCommands, TokenizerInfoListsAddedTokensAndReadsPackedLines) {
  write_all(dir_ / "held.jsonl", "{\"body\": \"ab ab\"}\n{\"body\": \"ab\"}\n");
  ASSERT_EQ(run_shell("gzip -k " + path("held.jsonl")).code, 0);
  write_all(dir_ / "held.txt", "ab ab");
  for (const std::string type : {"bpe", "wordpiece"}) {
    const Finished trained =
        run_shell("megalith tokenizer train --type " + type + " --vocab-size 300 --special '<one>' --input " +
                  inputs() + " --output " + path(type));
    ASSERT_EQ(trained.code, 0) << trained.err;
    const std::string info = "megalith tokenizer info " + path(type) + " --format json ";
    const auto packed = run_shell(info + "--key body --text " + path("held.jsonl.gz"));
    ASSERT_EQ(packed.code, 0) << packed.err;
    const auto found = nlohmann::json::parse(packed.out);
    std::set<std::string> added;
    for (const auto& token : found["added_tokens"]) added.insert(token["token"].get<std::string>());
    EXPECT_TRUE(added.contains("<one>")) << packed.out;
    EXPECT_TRUE(added.contains(type == "bpe" ? "<|endoftext|>" : "[MASK]")) << packed.out;
    EXPECT_EQ(found["text_documents"], 2);
    EXPECT_EQ(found["text_bytes"], 7);
    const auto plain = nlohmann::json::parse(run_shell(info + "--text " + path("held.txt")).out);
    EXPECT_EQ(plain["text_bytes"], 5);
    EXPECT_EQ(plain["text_documents"], 1);
    const Finished missing = run_shell(info + "--text " + path("held.jsonl"));
    EXPECT_EQ(missing.code, 65);
    EXPECT_NE(missing.err.find("key \"text\": is missing"), std::string::npos) << missing.err;
  }
}

}  // namespace
}  // namespace megalith::support
