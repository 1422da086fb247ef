#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/corpus/dedup.h"
#include "megalith/corpus/external_sort.h"
#include "megalith/corpus/work_folder.h"

namespace megalith::corpus {

/// A reader of records maps this many bytes at a time.
constexpr std::size_t kDedupWindow = std::size_t{256} << 10;

// The contents of the work folder of dedup(). Documents are numbered over all inputs, in order.

/// A document's hash for one band. The band is the upper byte of the key. A record belongs to one input file, so
/// `document` counts from the file's first.
struct BandRecord {
  std::uint64_t key = 0, document = 0;
  std::uint64_t hash() const { return key; }  // for ExternalSort
  auto operator<=>(const BandRecord&) const = default;
};
struct Pair {
  std::uint64_t first = 0, second = 0;
  auto operator<=>(const Pair&) const = default;
};
struct SimilarPair {
  std::uint64_t first = 0, second = 0;
  std::uint32_t shared = 0, either = 0;  ///< shingles
};
/// A document of a cluster and the one most similar to it.
struct Neighbour {
  std::uint64_t document = 0, other = 0;
  std::uint32_t shared = 0, either = 0;
  bool operator==(const Neighbour&) const = default;
  /// Orders by document, then the most similar first, then the lower number.
  bool operator<(const Neighbour& that) const {
    if (document != that.document) return document < that.document;
    const std::uint64_t here = std::uint64_t{shared} * that.either, there = std::uint64_t{that.shared} * either;
    return here != there ? here > there : other < that.other;
  }
};
struct Removed {
  std::uint64_t document = 0, kept = 0, other = 0;
  std::uint32_t shared = 0, either = 0;            ///< with other, the most similar document of the cluster
  std::uint32_t kept_shared = 0, kept_either = 0;  ///< with the kept document
};
struct SetPlace {
  std::uint64_t document = 0, begin = 0;  ///< place of its set in sets-NNNNN: its size, then its elements
};
/// The format of a time in a product.
inline std::uint64_t microseconds_since(double start_s) {
  return static_cast<std::uint64_t>(1e6 * (monotonic_s() - start_s));
}
struct SizeCount {
  std::uint64_t size = 0, clusters = 0;
};

/// The stages of dedup(). Each is cut into units that are made one by one, in any order, by any process. A unit's
/// product appears whole or not at all. It is a function of the options and the products of earlier stages.
class DedupStages {
 public:
  DedupStages(const DedupOptions& options, WorkFolder& work) : options_(options), work_(work), fs_(work.fs()) {}

  struct Stage {
    std::string name;
    std::function<std::size_t()> units;
    std::function<bool(std::size_t)> is_done;
    std::function<void(std::size_t)> make;
    int at_a_time = 1;  ///< threads that may call make(), which then takes one thread and its part of the memory
  };
  std::vector<Stage> stages();
  /// Call it when every stage is done.
  DedupReport report();

 private:
  /// "NAME-00007"
  static std::string numbered(const char* name, std::size_t number);
  std::size_t files() const { return options_.inputs.size(); }
  std::size_t bands() const { return static_cast<std::size_t>(options_.banding.bands); }
  /// First document of each file, and the number after the last: [files + 1].
  const std::vector<std::uint64_t>& bases();
  std::uint64_t documents() { return bases().back(); }
  std::size_t file_of(std::uint64_t document);
  std::size_t num_comparisons();
  /// Bands whose pairs are made at a time. Each needs memory for a sort and the windows of all files.
  int pairs_at_a_time() const {
    const std::size_t needed = (std::size_t{4} << 20) + (std::size_t{16} << 10) * files();
    return static_cast<int>(
        std::clamp<std::size_t>(options_.memory / needed, 1, static_cast<std::size_t>(options_.threads)));
  }

  /// Throws DamagedWork, with the file that holds them, unless these are numbers of documents.
  void require_numbers(const io::Path& file, std::initializer_list<std::uint64_t> documents_of_it) {
    for (const std::uint64_t document : documents_of_it)
      if (document >= documents()) throw DamagedWork(file);
  }
  /// A product with this many records.
  template <class Record>
  WorkFolder::Product open_with(const std::string& name, std::uint64_t records) {
    WorkFolder::Product product = work_.open(name);
    if (product.records<Record>() != records) throw DamagedWork(product.path);
    return product;
  }
  std::uint64_t documents_of(std::size_t file) { return bases()[file + 1] - bases()[file]; }

  /// Whether a band has crowded buckets. If it has none, no comparison of them is published.
  bool is_crowded(std::size_t band) { return work_.open(numbered("crowded", band)).bytes > 0; }

  void make_signatures(std::size_t file);
  class Prints;
  void make_pairs(std::size_t band);
  void make_candidates();
  void make_sets(std::size_t file);
  void compare(std::size_t unit);
  void compare_crowded(std::size_t band);
  void make_clusters();
  void make_removed();
  void filter(std::size_t file);
  /// Throws InputError unless the file has as many documents as were counted. Otherwise it has changed since.
  void require_documents(std::size_t file, std::uint64_t documents);
  void write_removed_list();

  class Sets;
  Sets sets();
  template <class IsBetter>
  void cluster_by(const IsBetter& is_better);

  const DedupOptions& options_;
  WorkFolder& work_;
  io::Fs& fs_;
  std::vector<std::uint64_t> bases_;
};

}  // namespace megalith::corpus
