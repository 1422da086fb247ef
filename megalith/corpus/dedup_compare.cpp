// The stages of dedup() from candidates to the list of removed documents.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "megalith/corpus/dedup_stages.h"
#include "megalith/corpus/normal_words.h"
#include "megalith/corpus/union_find.h"
#include "megalith/data/ordered_work.h"

namespace megalith::corpus {
namespace {

constexpr std::uint64_t kPairsInUnit = std::uint64_t{1} << 22, kPairsInBlock = 4096;

}  // namespace

/// The sets of shingles of the wanted documents, in mapped files. A copy shares the table of places and maps for
/// itself: one per thread. A mapping is released after `budget` bytes of it were read.
class DedupStages::Sets {
 public:
  Sets(io::Fs& fs, std::vector<io::Path> files, std::shared_ptr<const std::vector<std::uint64_t>> places,
       std::vector<std::uint64_t> bases, std::size_t budget)
      : fs_(&fs), paths_(std::move(files)), places_(std::move(places)), bases_(std::move(bases)), budget_(budget) {
    mapped_.resize(paths_.size());
  }

  /// The set of a document of the run. Valid until release_some().
  std::span<const std::uint64_t> of(std::uint64_t document) {
    const auto file =
        static_cast<std::size_t>(std::upper_bound(bases_.begin(), bases_.end(), document) - bases_.begin()) - 1;
    io::MappedFile& mapped = mapped_[file];
    if (mapped.bytes().empty()) mapped = fs_->map(paths_[file]);
    const std::uint64_t words = mapped.bytes().size() / 8, begin = (*places_)[document];
    const auto* const all = reinterpret_cast<const std::uint64_t*>(mapped.bytes().data());
    if (begin >= words || all[begin] > words - begin - 1) throw DamagedWork(paths_[file]);
    touched_ += 8 * all[begin] + 4096;
    return {all + begin + 1, all[begin]};
  }
  Overlap compare(std::uint64_t a, std::uint64_t b) {
    const auto x = of(a), y = of(b);
    return overlap(x.data(), x.size(), y.data(), y.size());
  }
  void release_some() {
    if (touched_ < budget_) return;
    for (io::MappedFile& mapped : mapped_) mapped = {};
    touched_ = 0;
  }

 private:
  io::Fs* fs_;
  std::vector<io::Path> paths_;
  std::shared_ptr<const std::vector<std::uint64_t>> places_;  // place of each document in its file
  std::vector<std::uint64_t> bases_;
  std::vector<io::MappedFile> mapped_;
  std::size_t budget_, touched_ = 0;
};

DedupStages::Sets DedupStages::sets() {
  const auto places = std::make_shared<std::vector<std::uint64_t>>(documents());
  std::vector<io::Path> paths;
  for (std::size_t file = 0; file < files(); ++file) {
    paths.push_back(work_.open(numbered("sets", file)).path);
    const WorkFolder::Product product = work_.open(numbered("places", file));
    for (auto reader = work_.read<SetPlace>(product, kDedupWindow); !reader.at_end(); reader.next()) {
      require_numbers(product.path, {reader.peek().document});
      (*places)[reader.peek().document] = reader.peek().begin;
    }
  }
  return {fs_, std::move(paths), places, bases(), options_.memory / 4 / static_cast<std::size_t>(options_.threads)};
}

std::size_t DedupStages::num_comparisons() {
  const std::uint64_t pairs = work_.open("candidates-00000").records<Pair>();
  return static_cast<std::size_t>((pairs + kPairsInUnit - 1) / kPairsInUnit);
}

// The exact similarity of the candidates of one unit. Those above the threshold stay.
void DedupStages::compare(std::size_t unit) {
  const std::string name = numbered("above", unit);
  work_.remove_leftovers(name);
  const WorkFolder::Product candidates = work_.open("candidates-00000");
  const std::uint64_t first = unit * kPairsInUnit;
  RecordReader<Pair> reader(fs_, candidates.path, first, std::min(first + kPairsInUnit, candidates.records<Pair>()),
                            kDedupWindow);
  const std::uint64_t compared = reader.remaining();
  const Sets shared = sets();
  work_.publish<SimilarPair>(name, [&](RecordWriter<SimilarPair>& above) {
    const auto next = [&]() -> std::optional<std::vector<Pair>> {
      std::vector<Pair> block;
      for (; !reader.at_end() && block.size() < kPairsInBlock; reader.next()) {
        require_numbers(candidates.path, {reader.peek().first, reader.peek().second});
        block.push_back(reader.peek());
      }
      if (block.empty()) return std::nullopt;
      return block;
    };
    const auto make_worker = [&] {
      return [this, sets = shared](const std::vector<Pair>& block, std::vector<SimilarPair>& result) mutable {
        result.clear();
        for (const Pair& pair : block) {
          const Overlap found = sets.compare(pair.first, pair.second);
          if (options_.jaccard.is_below(found.shared, found.either))
            result.push_back({pair.first, pair.second, static_cast<std::uint32_t>(found.shared),
                              static_cast<std::uint32_t>(found.either)});
          sets.release_some();
        }
      };
    };
    data::work_in_order<std::vector<SimilarPair>>(options_.threads, next, make_worker,
                                                  [&](const std::vector<SimilarPair>& result) { above.add(result); });
    return ProductNumbers{compared};
  });
}

// Crowded buckets. A leader is a document with no leader before it that is above the threshold. Each document is
// compared with the leaders before it, at most max_bucket of them, and only up to the first one above the
// threshold.
void DedupStages::compare_crowded(std::size_t band) {
  struct Result {
    std::vector<SimilarPair> above;
    std::uint64_t compared = 0, pairs = 0;
  };
  const std::string name = numbered("crowded-above", band);
  work_.remove_leftovers(name);
  const WorkFolder::Product crowded = work_.open(numbered("crowded", band));
  auto reader = work_.read<BandRecord>(crowded, kDedupWindow);
  const Sets shared = sets();
  work_.publish<SimilarPair>(name, [&](RecordWriter<SimilarPair>& above) {
    std::uint64_t compared = 0, pairs = 0;
    const auto next = [&]() -> std::optional<std::vector<std::uint64_t>> {
      if (reader.at_end()) return std::nullopt;
      std::vector<std::uint64_t> bucket;
      for (const std::uint64_t key = reader.peek().key; !reader.at_end() && reader.peek().key == key; reader.next()) {
        require_numbers(crowded.path, {reader.peek().document});
        bucket.push_back(reader.peek().document);
      }
      return bucket;
    };
    const auto make_worker = [&] {
      return [this, sets = shared](const std::vector<std::uint64_t>& bucket, Result& result) mutable {
        result = {};
        result.pairs = bucket.size() * (bucket.size() - 1) / 2;
        std::vector<std::uint64_t> leaders;
        for (const std::uint64_t document : bucket) {
          bool leads = true;
          for (const std::uint64_t leader : leaders) {
            const Overlap found = sets.compare(leader, document);
            sets.release_some();
            ++result.compared;
            if (!options_.jaccard.is_below(found.shared, found.either)) continue;
            result.above.push_back(
                {leader, document, static_cast<std::uint32_t>(found.shared), static_cast<std::uint32_t>(found.either)});
            leads = false;
            break;
          }
          if (leads && leaders.size() < options_.max_bucket) leaders.push_back(document);
        }
      };
    };
    data::work_in_order<Result>(options_.threads, next, make_worker, [&](const Result& result) {
      above.add(result.above);
      compared += result.compared;
      pairs += result.pairs;
    });
    return ProductNumbers{compared, pairs};
  });
}

void DedupStages::make_clusters() {
  work_.remove_leftovers("members-00000");
  work_.remove_leftovers("sizes");
  if (work_.has("sizes")) fs_.unlink(work_.prefix("sizes"));
  if (options_.keep == Keep::first) return cluster_by([](std::uint64_t a, std::uint64_t b) { return a < b; });
  std::vector<io::MappedFile> lengths;
  for (std::size_t file = 0; file < files(); ++file)
    lengths.push_back(fs_.map(open_with<std::uint64_t>(numbered("documents", file), documents_of(file)).path));
  const auto length = [&](std::uint64_t document) {
    const std::size_t file = file_of(document);
    return reinterpret_cast<const std::uint64_t*>(lengths[file].bytes().data())[document - bases()[file]];
  };
  cluster_by([&](std::uint64_t a, std::uint64_t b) {
    const std::uint64_t x = length(a), y = length(b);
    return x != y ? x > y : a < b;
  });
}

// Clusters of connected pairs. For every removed document it finds the one that stays, and the one most similar to it.
// The documents that stay are sorted in `kept`, to count clusters by their number of documents.
template <class IsBetter>
void DedupStages::cluster_by(const IsBetter& is_better) {
  UnionFind clusters(documents(), is_better);
  const auto for_each_above = [&](const auto& use) {
    const auto use_all = [&](const std::string& name) {
      const WorkFolder::Product product = work_.open(name);
      for (auto reader = work_.read<SimilarPair>(product, kDedupWindow); !reader.at_end(); reader.next()) {
        require_numbers(product.path, {reader.peek().first, reader.peek().second});
        use(reader.peek());
      }
    };
    for (std::size_t band = 0; band < bands(); ++band)
      if (is_crowded(band)) use_all(numbered("crowded-above", band));
    for (std::size_t unit = 0; unit < num_comparisons(); ++unit) use_all(numbered("above", unit));
  };
  for_each_above([&](const SimilarPair& pair) { clusters.connect(pair.first, pair.second); });

  ExternalSort<Neighbour> neighbours(fs_, work_.prefix("members-00000"), options_.memory / 4);
  for_each_above([&](const SimilarPair& pair) {
    if (clusters.best(pair.first) != pair.first) neighbours.add({pair.first, pair.second, pair.shared, pair.either});
    if (clusters.best(pair.second) != pair.second) neighbours.add({pair.second, pair.first, pair.shared, pair.either});
  });
  ExternalSort<std::uint64_t> kept(fs_, work_.prefix("sizes"), options_.memory / 4);
  std::map<std::uint64_t, std::uint64_t> by_size;
  work_.publish<Removed>("members-00000", [&](RecordWriter<Removed>& members) {
    std::optional<std::uint64_t> last;
    neighbours.finish([&](const Neighbour& neighbour) {
      if (last == neighbour.document) return;
      last = neighbour.document;
      const std::uint64_t stays = clusters.best(neighbour.document);
      members.add({.document = neighbour.document,
                   .kept = stays,
                   .other = neighbour.other,
                   .shared = neighbour.shared,
                   .either = neighbour.either});
      kept.add(stays);
    });
    std::uint64_t cluster = 0, size = 0;
    const auto end_cluster = [&] {
      if (size > 0) ++by_size[size + 1];
    };
    kept.finish([&](std::uint64_t stays) {
      if (stays != cluster) {
        end_cluster();
        size = 0;
      }
      cluster = stays;
      ++size;
    });
    end_cluster();
    work_.publish<SizeCount>("sizes", [&](RecordWriter<SizeCount>& sizes) {
      for (const auto& [of_size, count] : by_size) sizes.add({of_size, count});
      return ProductNumbers{};
    });
    return ProductNumbers{};
  });
}

// The similarity of removed documents to the kept ones.
void DedupStages::make_removed() {
  work_.remove_leftovers("removed-00000");
  const WorkFolder::Product members = work_.open("members-00000");
  auto reader = work_.read<Removed>(members, kDedupWindow);
  std::optional<Sets> shared;
  if (!reader.at_end()) shared = sets();
  work_.publish<Removed>("removed-00000", [&](RecordWriter<Removed>& removed) {
    const auto next = [&]() -> std::optional<std::vector<Removed>> {
      std::vector<Removed> block;
      for (; !reader.at_end() && block.size() < kPairsInBlock; reader.next()) {
        require_numbers(members.path, {reader.peek().document, reader.peek().kept});
        block.push_back(reader.peek());
      }
      if (block.empty()) return std::nullopt;
      return block;
    };
    const auto make_worker = [&] {
      return [sets = shared](const std::vector<Removed>& block, std::vector<Removed>& result) mutable {
        result = block;
        for (Removed& one : result) {
          const Overlap found = sets->compare(one.kept, one.document);
          one.kept_shared = static_cast<std::uint32_t>(found.shared);
          one.kept_either = static_cast<std::uint32_t>(found.either);
          sets->release_some();
        }
      };
    };
    data::work_in_order<std::vector<Removed>>(options_.threads, next, make_worker,
                                              [&](const std::vector<Removed>& result) { removed.add(result); });
    return ProductNumbers{};
  });
}

}  // namespace megalith::corpus
