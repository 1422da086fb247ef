// The figures of docs/bert.md#samples, of any corpus: what the first samples of a run have masked, swapped and cut, and
// how many a core makes in a second of its processor time.
//   bert_sample_figures VOCAB_DIR CORPUS [SAMPLES [SEQ_LEN]]
// VOCAB_DIR is a folder of a bert-uncased vocabulary, as share/bert-uncased; CORPUS what data.train takes. 10,000
// samples of 512 tokens with the defaults of [bert], seed 1. Returns 1 where a sample breaks a rule: more masked tokens
// than its budget, a word that is masked in part, or a share beyond three standard deviations.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <string>
#include <vector>

#include "megalith/data/data_config.h"

namespace megalith {
namespace {

/// A sample with its memory.
struct SampleMemory {
  explicit SampleMemory(const data::BertSampleConfig& config)
      : tokens(static_cast<std::size_t>(config.seq_len)),
        types(tokens),
        places(static_cast<std::size_t>(config.max_masked())),
        targets(places),
        sample{tokens, types, places, targets} {}
  SampleMemory(const SampleMemory&) = delete;
  SampleMemory& operator=(const SampleMemory&) = delete;

  std::vector<std::int32_t> tokens, types, places, targets;
  data::BertSample sample;
};

struct Counts {
  Index samples = 0, tokens = 0, swapped = 0;
  Index budget = 0, masked = 0, above_budget = 0, split_words = 0;
  Index as_mask = 0, unchanged = 0;
};

void count(const SampleMemory& made, const data::BertSampleConfig& config, const data::BertVocabulary& vocabulary,
           Counts& counts) {
  const auto length = static_cast<std::size_t>(made.sample.length);
  std::vector<std::int32_t> whole(made.tokens.begin(), made.tokens.begin() + made.sample.length);
  std::vector<bool> is_masked(length);
  Index masked = 0;
  for (std::size_t i = 0; i < made.places.size() && made.places[i] >= 0; ++i, ++masked) {
    const auto place = static_cast<std::size_t>(made.places[i]);
    counts.as_mask += made.tokens[place] == vocabulary.mask ? 1 : 0;
    counts.unchanged += made.tokens[place] == made.targets[i] ? 1 : 0;
    whole[place] = made.targets[i];
    is_masked[place] = true;
  }
  const auto begins_word = [&](std::size_t i) { return vocabulary.starts_word[static_cast<std::size_t>(whole[i])]; };
  for (std::size_t i = 1; i < length; ++i)
    counts.split_words += !begins_word(i) && is_masked[i] != is_masked[i - 1] ? 1 : 0;
  const Index budget = config.budget(made.sample.length - (config.is_pair() ? 3 : 2));
  ++counts.samples;
  counts.tokens += made.sample.length;
  counts.swapped += made.sample.label;
  counts.budget += budget;
  counts.masked += masked;
  counts.above_budget += masked > budget ? 1 : 0;
}

/// Prints a share with its distance from `want` in standard deviations, and returns whether it is within three.
bool print_share(const char* what, Index part, Index of, double want) {
  const double share = static_cast<double>(part) / static_cast<double>(of),
               away = (share - want) / std::sqrt(want * (1 - want) / static_cast<double>(of));
  std::printf("%-24s %.3f %% (%+.1f standard deviations from %g %%)\n", what, 100 * share, away, 100 * want);
  return std::abs(away) <= 3;
}

double thread_cpu_s() {
  std::timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int run(const std::string& vocab_dir, const std::string& corpus, Index samples, Index seq_len) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const auto tokenizer = tokenizer::make_tokenizer("bert-uncased", vocab_dir, *fs);
  const data::BertVocabulary vocabulary = data::bert_vocabulary(*tokenizer);
  const data::DataConfig files{.tokenizer = "bert-uncased", .train = {corpus}};
  const data::BertDataSets sets = data::open_bert_data(*fs, files, *tokenizer, {{.seq_len = seq_len}, 1});
  const data::BertSampleConfig& config = sets.train.config();
  SampleMemory made(config);
  sets.train.make(0, made.sample);  // pages of the corpus that the cuts did not touch
  const double begin = thread_cpu_s();
  for (Index n = 0; n < samples; ++n) sets.train.make(n, made.sample);
  const double seconds = thread_cpu_s() - begin;
  Counts counts;
  for (Index n = 0; n < samples; ++n) {
    sets.train.make(n, made.sample);
    count(made, config, vocabulary, counts);
  }
  const auto mean = [&](Index sum) { return static_cast<double>(sum) / static_cast<double>(counts.samples); };
  std::printf("corpus                   %lld tokens, %lld samples of at most %lld tokens in an epoch\n",
              static_cast<long long>(sets.train.num_tokens()), static_cast<long long>(sets.train.count()),
              static_cast<long long>(seq_len));
  std::printf("samples looked at        %lld, of %.1f tokens on average\n", static_cast<long long>(counts.samples),
              mean(counts.tokens));
  std::printf("masked tokens            %.2f of a budget of %.2f on average; above the budget: %lld samples\n",
              mean(counts.masked), mean(counts.budget), static_cast<long long>(counts.above_budget));
  std::printf("words masked in part     %lld\n", static_cast<long long>(counts.split_words));
  bool ok = counts.above_budget == 0 && counts.split_words == 0 &&
            static_cast<double>(counts.masked) >= 0.95 * static_cast<double>(counts.budget);
  ok = print_share("became [MASK]", counts.as_mask, counts.masked, 0.8) && ok;
  ok = print_share("stayed", counts.unchanged, counts.masked, 0.1) && ok;
  ok = print_share("swapped", counts.swapped, counts.samples, 0.5) && ok;
  std::printf("samples per second       %.0f\n", static_cast<double>(samples) / seconds);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace megalith

int main(int argc, char** argv) {
  const long long samples = argc > 3 ? std::atoll(argv[3]) : 10000, seq_len = argc > 4 ? std::atoll(argv[4]) : 512;
  if (argc < 3 || argc > 5 || samples < 1 || seq_len < 8) {
    std::fprintf(stderr, "bert_sample_figures VOCAB_DIR CORPUS [SAMPLES (from 1) [SEQ_LEN (from 8)]]\n");
    return 64;
  }
  try {
    return megalith::run(argv[1], argv[2], samples, seq_len);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 65;
  }
}
