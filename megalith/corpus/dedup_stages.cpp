#include "megalith/corpus/dedup_stages.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <utility>

#include "megalith/base/hash.h"
#include "megalith/corpus/normal_words.h"
#include "megalith/corpus/union_find.h"
#include "megalith/data/ordered_work.h"

namespace megalith::corpus {
namespace {

constexpr std::size_t kMinWindow = std::size_t{4} << 10, kMaxWindow = std::size_t{1} << 20;

std::uint64_t band_of(const BandRecord& record) { return record.key >> 56; }
std::uint64_t band_key(std::size_t band, std::uint64_t hash) { return std::uint64_t{band} << 56 | hash >> 8; }

/// Sorts and removes repeats.
void make_set(std::vector<std::uint64_t>& shingles) {
  sort_by_hash(std::span(shingles), [](std::uint64_t shingle) { return shingle; });
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
}

/// Shingles of the documents of consecutive blocks.
class Shingler {
 public:
  explicit Shingler(const DedupOptions& options)
      : text_(options.key), count_(static_cast<std::size_t>(options.shingle)) {}
  /// The shingles of a document, with repeats. Valid until the next call.
  std::vector<std::uint64_t>& of(const data::DocumentBlock& block, const data::RawDocument& document) {
    const std::string_view text = text_.of(block, document);
    text_bytes = text.size();
    words_.read(text);
    words = words_.size();
    print = 0;
    for (const std::uint64_t hash : words_.hashes()) print = mix64(print * 0x9e3779b97f4a7c15ULL + hash);
    shingles_.clear();
    append_shingles(words_.hashes(), count_, shingles_);
    return shingles_;
  }
  std::size_t text_bytes = 0, words = 0;  // counts of the last document
  std::uint64_t print = 0;                // equal for equal words in equal order

 private:
  data::DocumentText text_;
  NormalWords words_;
  std::size_t count_;
  std::vector<std::uint64_t> shingles_;
};

}  // namespace

std::string DedupStages::numbered(const char* name, std::size_t number) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%s-%05zu", name, number);
  return text.data();
}

const std::vector<std::uint64_t>& DedupStages::bases() {
  if (bases_.empty()) {
    bases_.push_back(0);
    for (std::size_t file = 0; file < files(); ++file)
      bases_.push_back(bases_.back() + work_.open(numbered("documents", file)).numbers[0]);
  }
  return bases_;
}

std::size_t DedupStages::file_of(std::uint64_t document) {
  return static_cast<std::size_t>(std::upper_bound(bases().begin(), bases().end(), document) - bases().begin()) - 1;
}

std::vector<DedupStages::Stage> DedupStages::stages() {
  const auto per_file = [this] { return files(); };
  const auto once = [] { return std::size_t{1}; };
  const auto has = [this](const char* name) {
    return [this, name](std::size_t i) { return work_.has(numbered(name, i)); };
  };
  return {
      {"signatures", per_file, has("bands"), [this](std::size_t file) { make_signatures(file); }},
      {"pairs",
       [this] {
         bases();  // read before threads need them
         return bands();
       },
       has("pairs"), [this](std::size_t band) { make_pairs(band); }, pairs_at_a_time()},
      {"candidates", once, has("candidates"), [this](std::size_t) { make_candidates(); }},
      {"sets", per_file, has("places"), [this](std::size_t file) { make_sets(file); }},
      {"comparison", [this] { return num_comparisons() + bands(); },
       [this](std::size_t i) {
         return i < bands() ? !is_crowded(i) || work_.has(numbered("crowded-above", i))
                            : work_.has(numbered("above", i - bands()));
       },
       [this](std::size_t i) { i < bands() ? compare_crowded(i) : compare(i - bands()); }},
      {"clusters", once, has("members"), [this](std::size_t) { make_clusters(); }},
      {"similarities", once, has("removed"), [this](std::size_t) { make_removed(); }},
      {"filter", per_file, has("kept"), [this](std::size_t file) { filter(file); }},
      {"list", once, has("listed"), [this](std::size_t) { write_removed_list(); }},
  };
}

// Signatures. For each document of a file they have its length and a hash of its words in their order (its print). They
// also have its hash for each band, sorted by band and hash.
void DedupStages::make_signatures(std::size_t file) {
  struct Result {
    std::vector<std::uint64_t> bands, text_bytes, prints;
    std::uint64_t words = 0, without_words = 0;
  };
  const double start = monotonic_s();
  const std::string lengths_name = numbered("documents", file), bands_name = numbered("bands", file);
  const std::string prints_name = numbered("prints", file);
  work_.remove_leftovers(bands_name);
  if (work_.has(lengths_name)) fs_.unlink(work_.prefix(lengths_name));  // its bands are missing, so both are remade
  work_.remove_leftovers(lengths_name);
  if (work_.has(prints_name)) fs_.unlink(work_.prefix(prints_name));
  work_.remove_leftovers(prints_name);
  ExternalSort<BandRecord> sort(fs_, work_.prefix(bands_name), options_.memory / 2, options_.threads);
  work_.publish<std::uint64_t>(lengths_name, [&](RecordWriter<std::uint64_t>& lengths) {
    data::DocumentReader reader(fs_, options_.inputs[file], options_.reading);
    std::uint64_t document = 0, text_bytes = 0, words = 0, without_words = 0;
    work_.publish<std::uint64_t>(prints_name, [&](RecordWriter<std::uint64_t>& prints) {
      data::work_in_order<Result>(
          options_.threads, [&] { return reader.next(); },
          [&] {
            return [this, shingler = Shingler(options_), minhash = MinHash(options_.banding, options_.seed)](
                       const data::DocumentBlock& block, Result& result) mutable {
              result = Result{std::move(result.bands), std::move(result.text_bytes), std::move(result.prints)};
              result.bands.resize(block.documents.size() * bands());
              result.text_bytes.clear();
              result.prints.clear();
              for (std::size_t i = 0; i < block.documents.size(); ++i) {
                minhash.bands(shingler.of(block, block.documents[i]),
                              std::span(result.bands).subspan(i * bands(), bands()));
                result.text_bytes.push_back(shingler.text_bytes);
                result.prints.push_back(shingler.print);
                result.words += shingler.words;
                result.without_words += shingler.words == 0;
              }
            };
          },
          [&](const Result& result) {
            for (std::size_t i = 0; i < result.text_bytes.size(); ++i, ++document) {
              lengths.add(result.text_bytes[i]);
              text_bytes += result.text_bytes[i];
              for (std::size_t band = 0; band < bands(); ++band)
                sort.add({band_key(band, result.bands[i * bands() + band]), document});
            }
            prints.add(result.prints);
            words += result.words;
            without_words += result.without_words;
          });
      return ProductNumbers{};
    });
    return ProductNumbers{
        document, fs_.file_size(options_.inputs[file]), text_bytes, words, without_words, microseconds_since(start)};
  });
  work_.publish<BandRecord>(bands_name, [&](RecordWriter<BandRecord>& sorted) {
    sort.finish([&](const BandRecord& record) { sorted.add(record); });
    return ProductNumbers{};
  });
}

/// The prints of documents, in mapped files.
class DedupStages::Prints {
 public:
  explicit Prints(DedupStages& stages) : stages_(stages), mapped_(stages.files()) {}
  std::uint64_t of(std::uint64_t document) {
    const std::size_t file = stages_.file_of(document);
    if (mapped_[file].bytes().empty())
      mapped_[file] =
          stages_.fs_.map(stages_.open_with<std::uint64_t>(numbered("prints", file), stages_.documents_of(file)).path);
    return reinterpret_cast<const std::uint64_t*>(mapped_[file].bytes().data())[document - stages_.bases()[file]];
  }

 private:
  DedupStages& stages_;
  std::vector<io::MappedFile> mapped_;
};

// Pairs of one band: all pairs of every bucket (documents with one key). Documents of equal prints count as one: each
// is a pair with the first of them only, so that n copies are n - 1 pairs. Buckets with more than max_bucket
// documents are kept unchanged, for compare_crowded().
void DedupStages::make_pairs(std::size_t band) {
  const std::string pairs_name = numbered("pairs", band), crowded_name = numbered("crowded", band);
  work_.remove_leftovers(pairs_name);
  work_.remove_leftovers(crowded_name);
  if (work_.has(crowded_name)) fs_.unlink(work_.prefix(crowded_name));
  const std::size_t memory = options_.memory / static_cast<std::size_t>(pairs_at_a_time());
  ExternalSort<Pair> sort(fs_, work_.prefix(pairs_name), memory / 2);
  work_.publish<BandRecord>(crowded_name, [&](RecordWriter<BandRecord>& crowded) {
    std::vector<RecordReader<BandRecord>> readers;
    const std::size_t window = std::clamp(memory / 4 / files(), kMinWindow, kMaxWindow);
    for (std::size_t file = 0; file < files(); ++file) {
      const std::uint64_t count = documents_of(file);
      readers.emplace_back(fs_, open_with<BandRecord>(numbered("bands", file), bands() * count).path, band * count,
                           (band + 1) * count, window);
    }
    std::uint64_t key = 0, size = 0, buckets = 0;
    std::vector<std::uint64_t> bucket;
    Prints prints(*this);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> by_print;
    const auto fold_copies = [&] {
      by_print.clear();
      for (const std::uint64_t document : bucket) by_print.emplace_back(prints.of(document), document);
      std::ranges::sort(by_print);
      bucket.clear();
      for (std::size_t i = 0, first = 0; i < by_print.size(); ++i) {
        if (by_print[i].first != by_print[first].first) first = i;
        if (i == first)
          bucket.push_back(by_print[i].second);
        else
          sort.add({by_print[first].second, by_print[i].second});
      }
      std::ranges::sort(bucket);
    };
    const auto end_bucket = [&] {
      if (bucket.size() > 2) fold_copies();
      if (size <= options_.max_bucket)
        for (std::size_t j = 1; j < bucket.size(); ++j)
          for (std::size_t i = 0; i < j; ++i) sort.add({bucket[i], bucket[j]});
      else
        ++buckets;
      bucket.clear();
      size = 0;
    };
    merge(
        readers, [](const BandRecord& a, const BandRecord& b) { return a.key < b.key; },
        [&](const BandRecord& record, std::size_t file) {
          if (band_of(record) != band || record.document >= documents_of(file))
            throw DamagedWork(work_.prefix(numbered("bands", file)));
          if (size > 0 && record.key != key) end_bucket();
          key = record.key;
          bucket.push_back(bases()[file] + record.document);
          if (++size <= options_.max_bucket) return;
          for (const std::uint64_t document : bucket) crowded.add({key, document});
          bucket.clear();
        });
    if (size > 0) end_bucket();
    return ProductNumbers{buckets};
  });
  work_.publish<Pair>(pairs_name, [&](RecordWriter<Pair>& pairs) {
    sort.finish([&](const Pair& pair) { pairs.add(pair); });
    return ProductNumbers{};
  });
}

// The pairs of all bands, once each. Also a bit for every document that is in one of them or in a crowded bucket.
void DedupStages::make_candidates() {
  work_.remove_leftovers("candidates-00000");
  work_.remove_leftovers("wanted");
  if (work_.has("wanted")) fs_.unlink(work_.prefix("wanted"));
  std::vector<std::uint64_t> wanted(documents() / 64 + 1);
  const auto want = [&](const io::Path& file, std::uint64_t document) {
    require_numbers(file, {document});
    wanted[document / 64] |= std::uint64_t{1} << document % 64;
  };
  for (std::size_t band = 0; band < bands(); ++band) {
    const WorkFolder::Product product = work_.open(numbered("crowded", band));
    for (auto crowded = work_.read<BandRecord>(product, kMaxWindow); !crowded.at_end(); crowded.next())
      want(product.path, crowded.peek().document);
  }
  std::vector<RecordReader<Pair>> readers;
  std::vector<io::Path> paths;
  const std::size_t window = std::clamp(options_.memory / 4 / bands(), kMinWindow, kMaxWindow);
  for (std::size_t band = 0; band < bands(); ++band) {
    const WorkFolder::Product product = work_.open(numbered("pairs", band));
    readers.push_back(work_.read<Pair>(product, window));
    paths.push_back(product.path);
  }
  // `wanted` is published first, because `candidates` marks the stage as done. So its bits are found in a pass of their
  // own.
  Pair last;
  merge(readers, std::less<Pair>(), [&](const Pair& pair, std::size_t band) {
    want(paths[band], pair.first);
    want(paths[band], pair.second);
  });
  work_.publish<std::uint64_t>("wanted", [&](RecordWriter<std::uint64_t>& bits) {
    bits.add(wanted);
    return ProductNumbers{};
  });
  readers.clear();
  for (std::size_t band = 0; band < bands(); ++band)
    readers.push_back(work_.read<Pair>(work_.open(numbered("pairs", band)), window));
  work_.publish<Pair>("candidates-00000", [&](RecordWriter<Pair>& pairs) {
    merge(readers, std::less<Pair>(), [&](const Pair& pair, std::size_t) {
      if (pair == last) return;  // no pair is {0, 0}
      last = pair;
      pairs.add(pair);
    });
    return ProductNumbers{};
  });
}

// The sets of shingles of the wanted documents of a file.
void DedupStages::make_sets(std::size_t file) {
  struct Block {
    data::DocumentBlock documents;
    std::vector<std::size_t> wanted{};
  };
  struct Result {
    std::vector<std::uint64_t> sets;
    std::vector<SetPlace> places;
  };
  const std::string sets_name = numbered("sets", file), places_name = numbered("places", file);
  work_.remove_leftovers(sets_name);
  work_.remove_leftovers(places_name);
  if (work_.has(sets_name)) fs_.unlink(work_.prefix(sets_name));
  const io::MappedFile wanted_file = fs_.map(open_with<std::uint64_t>("wanted", documents() / 64 + 1).path);
  const auto* const bits = reinterpret_cast<const std::uint64_t*>(wanted_file.bytes().data());
  const auto is_wanted = [&](std::uint64_t document) { return (bits[document / 64] >> document % 64 & 1) != 0; };
  const std::uint64_t base = bases()[file], end = bases()[file + 1];
  bool any = false;
  for (std::uint64_t document = base; document < end && !any; ++document) any = is_wanted(document);

  work_.publish<SetPlace>(places_name, [&](RecordWriter<SetPlace>& places) {
    work_.publish<std::uint64_t>(sets_name, [&](RecordWriter<std::uint64_t>& sets) {
      if (!any) return ProductNumbers{};
      data::DocumentReader reader(fs_, options_.inputs[file], options_.reading);
      const auto next = [&]() -> std::optional<Block> {
        auto documents = reader.next();
        if (!documents || reader.documents() > end - base) require_documents(file, reader.documents());
        if (!documents) return std::nullopt;
        Block block{std::move(*documents)};
        for (std::size_t i = 0; i < block.documents.documents.size(); ++i)
          if (is_wanted(base + block.documents.first + i)) block.wanted.push_back(i);
        return block;
      };
      const auto make_worker = [&] {
        return [base, shingler = Shingler(options_)](const Block& block, Result& result) mutable {
          result.sets.clear();
          result.places.clear();
          for (const std::size_t i : block.wanted) {
            std::vector<std::uint64_t>& set = shingler.of(block.documents, block.documents.documents[i]);
            make_set(set);
            result.places.push_back({base + block.documents.first + i, result.sets.size()});
            result.sets.push_back(set.size());
            result.sets.insert(result.sets.end(), set.begin(), set.end());
          }
        };
      };
      data::work_in_order<Result>(options_.threads, next, make_worker, [&](const Result& result) {
        for (const SetPlace& place : result.places) places.add({place.document, sets.records() + place.begin});
        sets.add(result.sets);
      });
      return ProductNumbers{};
    });
    return ProductNumbers{};
  });
}

}  // namespace megalith::corpus
