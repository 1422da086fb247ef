#include "megalith/data/bert_samples.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/philox.h"

#include "tests/io/temp_dir.h"

// Samples for masked language models: what is cut where, what is masked, and that all of it follows from the seed, the
// epoch and the number.
namespace megalith::data {
namespace {

using Ids = std::vector<std::int32_t>;
using Document = std::vector<Ids>;

// Ids: 0 [PAD], 1 [CLS], 2 [SEP], 3 [MASK], 4 [UNK]; from 5 on even ids begin a word, odd ones go on with it.
constexpr std::int32_t kPad = 0, kCls = 1, kSep = 2, kMask = 3, kFirstOrdinary = 5, kVocab = 205;
bool begins(std::int32_t id) { return id < kFirstOrdinary || id % 2 == 0; }

BertVocabulary vocabulary() {
  BertVocabulary v{.cls = kCls, .sep = kSep, .mask = kMask, .pad = kPad, .is_special = {}, .starts_word = {}};
  for (std::int32_t id = 0; id < kVocab; ++id) {
    v.is_special.push_back(id < kFirstOrdinary);
    v.starts_word.push_back(begins(id));
  }
  return v;
}

/// Words of 1 to 4 tokens, sentences of 1 to `longest` tokens or a few more, documents of 1 to 12 sentences.
std::vector<Document> documents_of(std::uint64_t seed, int count, Index longest) {
  const RandomSite site{.seed = seed};
  std::uint64_t next = 0;
  const auto below = [&](Index n) { return static_cast<Index>(site.word(next++) % static_cast<std::uint64_t>(n)); };
  std::vector<Document> all(static_cast<std::size_t>(count));
  for (Document& document : all) {
    document.resize(static_cast<std::size_t>(1 + below(12)));
    for (Ids& sentence : document) {
      const Index size = 1 + below(longest);
      while (std::ssize(sentence) < size) {
        sentence.push_back(static_cast<std::int32_t>(6 + 2 * below(99)));
        for (Index more = below(4); more > 0; --more) sentence.push_back(static_cast<std::int32_t>(7 + 2 * below(99)));
      }
    }
  }
  return all;
}

/// A sample with its memory.
struct Made {
  Ids tokens, types, places, targets;
  BertSample sample;

  explicit Made(const BertSamples& samples, Index epoch = 0, Index number = 0) {
    tokens.assign(static_cast<std::size_t>(samples.config().seq_len), -7);
    types = tokens;
    places.assign(static_cast<std::size_t>(samples.config().max_masked()), -7);
    targets = places;
    sample = {tokens, types, places, targets, -7, -7};
    samples.make(epoch, number, sample);
  }
  /// The tokens before they were masked, without the padding.
  Ids whole() const {
    Ids ids(tokens.begin(), tokens.begin() + sample.length);
    for (std::size_t i = 0; i < places.size() && places[i] >= 0; ++i)
      ids[static_cast<std::size_t>(places[i])] = targets[i];
    return ids;
  }
  Index masked() const {
    return std::ranges::count_if(places, [](std::int32_t place) { return place >= 0; });
  }
  bool operator==(const Made& other) const {
    return tokens == other.tokens && types == other.types && places == other.places && targets == other.targets &&
           sample.length == other.sample.length && sample.label == other.sample.label;
  }
};

SentenceSourcePtr sentences_of(const std::vector<Document>& documents) {
  SentenceText text;
  for (const Document& document : documents) {
    for (const Ids& sentence : document) {
      text.tokens.insert(text.tokens.end(), sentence.begin(), sentence.end());
      text.end_sentence();
    }
    text.end_document();
  }
  return memory_sentences("text", std::move(text));
}

BertSamples samples_of(const std::vector<Document>& documents, const BertSampleConfig& config,
                       std::uint64_t seed = 1234) {
  return {sentences_of(documents), {0, std::ssize(documents)}, vocabulary(), config, seed};
}

const std::vector<Document>& corpus() {
  static const std::vector<Document> documents = documents_of(1, 1500, 24);
  return documents;
}

/// Within three standard deviations of a binomial count.
void expect_share(double count, double of, double share, const char* what) {
  EXPECT_NEAR(count / of, share, 3 * std::sqrt(share * (1 - share) / of)) << what << " of " << of;
}

TEST(BertSamples, HaveTheFormOfTheirOrder) {
  for (const SentenceOrder order : {SentenceOrder::sop, SentenceOrder::nsp, SentenceOrder::none}) {
    const BertSamples samples = samples_of(corpus(), {.seq_len = 48, .order = order});
    const Index segments = order == SentenceOrder::none ? 1 : 2;
    for (Index number = 0; number < samples.count(); ++number) {
      const Made made(samples, 0, number);
      const auto length = static_cast<std::size_t>(made.sample.length);
      ASSERT_LE(length, 48u);
      ASSERT_EQ(made.tokens.front(), kCls);
      ASSERT_EQ(made.tokens[length - 1], kSep);
      ASSERT_EQ(std::count(made.tokens.begin(), made.tokens.end(), kSep), segments);
      const auto first_sep = static_cast<std::size_t>(std::ranges::find(made.tokens, kSep) - made.tokens.begin());
      ASSERT_GT(first_sep, 1u) << "no segment is empty";
      if (segments == 2) {
        ASSERT_GT(length, first_sep + 2);
      }
      for (std::size_t i = 0; i < 48; ++i) {
        ASSERT_EQ(made.types[i], segments == 2 && i > first_sep && i < length ? 1 : 0) << i;
        if (i >= length) {
          ASSERT_EQ(made.tokens[i], kPad) << i;
        }
      }
      ASSERT_TRUE(made.sample.label == 0 || (made.sample.label == 1 && segments == 2));
    }
  }
}

/// The tokens of [begin, end) of the corpus, its documents one after the other.
Ids flat(const std::vector<Document>& documents) {
  Ids all;
  for (const Document& document : documents) {
    for (const Ids& sentence : document) all.insert(all.end(), sentence.begin(), sentence.end());
  }
  return all;
}

TEST(BertSamples, CutTextsBetweenSentencesAndLoseNothing) {
  const std::vector<Document>& documents = corpus();
  const Ids text = flat(documents);
  const SentenceSourcePtr source = sentences_of(documents);
  std::set<Index> sentences;
  for (Index i = 0; i <= source->first_sentence(source->num_documents()); ++i) sentences.insert(source->first_token(i));
  for (const SentenceOrder order : {SentenceOrder::sop, SentenceOrder::none}) {
    const BertSamples samples = samples_of(documents, {.seq_len = 23, .order = order});
    Index at = 0, lost = 0, at_words = 0;
    for (Index number = 0; number < samples.count(); ++number) {
      const BertSamples::Cut cut = samples.cut_of(number);
      ASSERT_LE(cut.end - cut.begin, 20);
      ASSERT_GE(cut.begin, at);
      lost += cut.begin - at;
      at = cut.end;
      const Index document_end = source->text_end(cut.document);
      ASSERT_LE(cut.end, document_end) << "of one document";
      if (!sentences.contains(cut.end)) {
        ++at_words;
        const Index begin = *std::prev(sentences.upper_bound(cut.begin)), end = *sentences.upper_bound(cut.begin);
        ASSERT_GT(end - begin, 20) << "the sentence fits in a sample";
        ASSERT_TRUE(begins(text[static_cast<std::size_t>(cut.end)])) << "a word is cut";
      }
      const Ids whole = Made(samples, 0, number).whole();
      if (order == SentenceOrder::none) {
        ASSERT_EQ(Ids(whole.begin() + 1, whole.end() - 1), Ids(text.begin() + cut.begin, text.begin() + cut.end));
      }
    }
    EXPECT_GT(at_words, 50);
    const Index all_lost = lost + std::ssize(text) - at;
    EXPECT_TRUE(order != SentenceOrder::none || all_lost == 0) << all_lost;
  }
}

TEST(BertSamples, PairsAreConsecutiveAndSwappedWithAHalf) {
  const BertSamples samples = samples_of(corpus(), {.seq_len = 64, .order = SentenceOrder::sop});
  const Ids text = flat(corpus());
  const SentenceSourcePtr source = sentences_of(corpus());
  std::set<Index> sentences;
  for (Index i = 0; i <= source->first_sentence(source->num_documents()); ++i) sentences.insert(source->first_token(i));
  double swapped = 0;
  std::map<Index, double> a_of_three;  // sentences in A of samples of three
  for (Index number = 0; number < samples.count(); ++number) {
    const BertSamples::Cut cut = samples.cut_of(number);
    const Made made(samples, 0, number);
    const Ids whole = made.whole();
    const auto sep = std::ranges::find(whole, kSep);
    Ids a(whole.begin() + 1, sep), b(sep + 1, whole.end() - 1);
    if (made.sample.label == 1) std::swap(a, b);
    const Index split = cut.begin + std::ssize(a);
    if (cut.sentences == 3) ++a_of_three[split <= *sentences.upper_bound(cut.begin) ? 1 : 2];
    a.insert(a.end(), b.begin(), b.end());
    ASSERT_EQ(a, Ids(text.begin() + cut.begin, text.begin() + cut.end));
    ASSERT_TRUE(cut.sentences > 1 ? sentences.contains(split) : begins(text[static_cast<std::size_t>(split)]));
    swapped += made.sample.label;
  }
  expect_share(swapped, static_cast<double>(samples.count()), 0.5, "swapped");
  expect_share(a_of_three[1], a_of_three[1] + a_of_three[2], 0.5, "one sentence of three in A");
}

TEST(BertSamples, SecondSegmentsOfNspAreOfOtherDocumentsWithAHalf) {
  // Each document has ids of its own.
  std::vector<Document> documents(60);
  for (std::size_t d = 0; d < documents.size(); ++d) {
    for (int s = 0; s < 30; ++s) documents[d].emplace_back(5 + s % 7, static_cast<std::int32_t>(6 + 2 * d));
  }
  const BertSamples samples = samples_of(documents, {.seq_len = 32, .order = SentenceOrder::nsp});
  double others = 0;
  for (Index number = 0; number < samples.count(); ++number) {
    const BertSamples::Cut cut = samples.cut_of(number);
    const Made made(samples, 0, number);
    const Ids whole = made.whole();
    const std::int32_t own = static_cast<std::int32_t>(6 + 2 * cut.document), first = whole[1],
                       second = whole[whole.size() - 2];
    ASSERT_EQ(first, own);
    ASSERT_EQ(second != own, made.sample.label == 1);
    ASSERT_LE(std::ssize(whole) - 3, cut.end - cut.begin);
    others += made.sample.label;
  }
  expect_share(others, static_cast<double>(samples.count()), 0.5, "of other documents");
}

TEST(BertSamples, AShareIsShort) {
  std::vector<Document> documents(1, Document(30000, Ids(2, 6)));
  const BertSamples samples = samples_of(documents, {.seq_len = 67, .order = SentenceOrder::none});
  double is_short = 0, sum = 0;
  std::set<Index> lengths;
  Index at = 0;  // of a document with more samples than lie between two anchors
  for (Index number = 0; number + 1 < samples.count(); ++number) {
    const BertSamples::Cut cut = samples.cut_of(number);
    ASSERT_EQ(cut.begin, at) << number;
    at = cut.end;
    lengths.insert(cut.end - cut.begin);
    if (cut.end - cut.begin < 64) ++is_short, sum += static_cast<double>(cut.end - cut.begin);
  }
  EXPECT_EQ(samples.cut_of(samples.count() - 1).begin, at);
  EXPECT_EQ(samples.cut_of(samples.count() - 1).end, 60000);
  // Targets from 2 to 64; of sentences with two tokens 63 and 64 are whole.
  expect_share(is_short, static_cast<double>(samples.count() - 1), 0.1 * 61 / 63, "short");
  EXPECT_NEAR(sum / is_short, 33, 3 * 18 / std::sqrt(is_short)) << "a target of 2 n - 1 becomes 2 n";
  EXPECT_GT(lengths.size(), 24u) << "of 2, 4, ..., 64";
  const BertSamples none = samples_of(documents, {.seq_len = 67, .order = SentenceOrder::none, .short_fraction = 0});
  EXPECT_EQ(none.count(), (60000 + 63) / 64);
}

TEST(BertSamples, MaskWholeWordsWithinTheBudget) {
  const BertSampleConfig config{.seq_len = 64};
  const BertSamples samples = samples_of(corpus(), config);
  double masked = 0, budget = 0, as_mask = 0, as_self = 0;
  for (Index number = 0; number < samples.count(); ++number) {
    const Made made(samples, 3, number);
    const Ids whole = made.whole();
    const Index ordinary = std::ssize(whole) - 3;
    const Index most = std::max<Index>(1, static_cast<Index>(std::floor(0.15 * static_cast<double>(ordinary) + 1e-9)));
    ASSERT_LE(made.masked(), most);
    masked += static_cast<double>(made.masked());
    budget += static_cast<double>(most);
    std::set<Index> places;
    for (Index i = 0; i < std::ssize(made.places); ++i) {
      const std::int32_t place = made.places[static_cast<std::size_t>(i)];
      ASSERT_EQ(place < 0, i >= made.masked());
      ASSERT_EQ(made.targets[static_cast<std::size_t>(i)] < 0, place < 0);
      if (place < 0) continue;
      ASSERT_TRUE(places.empty() || *places.rbegin() < place) << "ascending";
      places.insert(place);
      const std::int32_t now = made.tokens[static_cast<std::size_t>(place)],
                         was = whole[static_cast<std::size_t>(place)];
      ASSERT_GE(was, kFirstOrdinary);
      ASSERT_TRUE(now == kMask || now >= kFirstOrdinary) << now;
      as_mask += now == kMask;
      as_self += now == was;
    }
    for (Index i = 1; i + 1 < std::ssize(whole); ++i) {
      if (begins(whole[static_cast<std::size_t>(i)])) continue;
      ASSERT_EQ(places.contains(i), places.contains(i - 1)) << "a word is split";
    }
  }
  EXPECT_GT(masked, 0.95 * budget);
  expect_share(as_mask, masked, 0.8, "[MASK]");
  expect_share(as_self, masked, 0.1 + 0.1 / (kVocab - kFirstOrdinary), "the token itself");
}

TEST(BertSamples, SpansHaveNWordsInProportionToOneOverN) {
  std::map<Index, double> counts;
  const RandomSite site{.seed = 5};
  constexpr double kDraws = 60000;
  for (std::uint64_t i = 0; i < kDraws; ++i) ++counts[ngram_of(site.word(i), 3)];
  for (Index n = 1; n <= 3; ++n) expect_share(counts[n], kDraws, 6.0 / static_cast<double>(n) / 11, "words of a span");
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(ngram_of(0, 1), 1);
  EXPECT_EQ(ngram_of(~0u, 10), 10);
  // In samples, where words are single tokens and there is room for all spans.
  const std::vector<Document> documents(400, Document(2, Ids(400, 6)));
  const BertSamples samples = samples_of(documents, {.seq_len = 512, .mask_fraction = 0.02, .short_fraction = 0});
  double runs = 0, tokens = 0;
  for (Index number = 0; number < samples.count(); ++number) {
    const Made made(samples, 0, number);
    for (Index i = 0; i < made.masked(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      runs += i == 0 || made.places[at] != made.places[at - 1] + 1;
      ++tokens;
    }
  }
  EXPECT_NEAR(tokens / runs, 18.0 / 11, 0.12) << "the mean of n, less the last span, plus spans that adjoin";
}

TEST(BertSamples, WithoutWholeWordsTokensAreMaskedAlone) {
  const BertSamples samples = samples_of(corpus(), {.seq_len = 64, .max_ngram = 1, .whole_words = false});
  double split = 0, inner = 0;
  for (Index number = 0; number < 500; ++number) {
    const Made made(samples, 0, number);
    const Ids whole = made.whole();
    const std::set<std::int32_t> places(made.places.begin(), made.places.end());
    for (std::int32_t i = 1; i + 1 < std::ssize(whole); ++i) {
      if (begins(whole[static_cast<std::size_t>(i)])) continue;
      ++inner;
      split += places.contains(i) != places.contains(i - 1);
    }
  }
  EXPECT_GT(split / inner, 0.15);
}

TEST(BertSamples, AreAFunctionOfSeedEpochAndNumber) {
  const BertSamples one = samples_of(corpus(), {.seq_len = 64}), again = samples_of(corpus(), {.seq_len = 64}),
                    other = samples_of(corpus(), {.seq_len = 64}, 99);
  Index other_epoch = 0, other_seed = 0;
  for (Index number = 200; number-- > 0;) {
    const Made made(again, 7, number);
    ASSERT_TRUE(made == Made(one, 7, number)) << "in another order of calls";
    ASSERT_EQ(one.cut_of(number), again.cut_of(number));
    other_epoch += made == Made(one, 8, number);
    other_seed += made == Made(other, 7, number);
  }
  EXPECT_LT(other_epoch, 10);
  EXPECT_LT(other_seed, 10);
}

/// Of `data build --sentences`, with and without a token that ends documents.
TEST(BertSamples, OfAPairOfFilesAreThoseOfItsSentences) {
  const std::vector<Document> documents = documents_of(3, 40, 24);
  const BertSamples want = samples_of(documents, {.seq_len = 64});
  for (const int ends : {0, 1, 2}) {  // no such token, at the end of the last sentence, as a sequence of its own
    const TempDir dir;
    const std::shared_ptr<io::Fs> fs = io::posix_fs();
    IndexedDatasetBuilder builder(*fs, dir / "text", {.vocab_size = kVocab});
    for (const Document& document : documents) {
      for (std::size_t i = 0; i < document.size(); ++i) {
        if (i > 0) builder.end_sequence();
        builder.add(document[i]);
      }
      if (ends == 2) builder.end_sequence();
      if (ends > 0) builder.add(Ids{kSep});
      builder.end_document();
    }
    builder.finish();
    const BertSamples got(indexed_sentences(IndexedDataset(*fs, dir / "text"), kSep), {0, 40}, vocabulary(),
                          {.seq_len = 64}, 1234);
    ASSERT_EQ(got.count(), want.count());
    for (Index number = 0; number < want.count(); ++number)
      ASSERT_TRUE(Made(got, 2, number) == Made(want, 2, number)) << number;
    EXPECT_EQ(error_of<ShapeError>([&] {
                static_cast<void>(IndexedDataset(*fs, dir / "text").sequence_begin(-1));
              }).find(dir.path().string()),
              1u);
  }
}

TEST(BertSamples, RefuseTextsThatGiveNone) {
  const auto error = [](const std::vector<Document>& documents, SentenceOrder order) {
    return error_of<InputError>([&] { samples_of(documents, {.seq_len = 16, .order = order}); });
  };
  const std::vector<Document> singles(3, Document{Ids(9, 6)});
  EXPECT_EQ(error(singles, SentenceOrder::sop),
            "[text] no document has two sentences: use bert.order = \"none\", or `data build --sentences`");
  EXPECT_EQ(error(singles, SentenceOrder::none), "");
  EXPECT_EQ(error({Document{}, Document{Ids{}}}, SentenceOrder::none), "[text] no document has a token");
  EXPECT_EQ(
      error({Document(2, Ids(9, 6))}, SentenceOrder::nsp),
      "[text] one document: bert.order = \"nsp\" needs two, as second segments may be of another; use bert.order = "
      "\"sop\"");
  const BertSamples samples = samples_of({Document(2, Ids(3, kVocab))}, {.seq_len = 16});
  EXPECT_EQ(error_of<InputError>([&] { Made made(samples); }),
            "[text] id 205: must be below 205, the size of the vocabulary; the file was made with another tokenizer");
  EXPECT_EQ(error_of<ShapeError>([&] { static_cast<void>(samples.cut_of(1)); }),
            "[bert_samples] sample 1 of text: must be below 1");
}

}  // namespace
}  // namespace megalith::data
