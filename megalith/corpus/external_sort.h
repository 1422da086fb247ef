#pragma once
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "megalith/corpus/hash_sort.h"
#include "megalith/corpus/record_file.h"

namespace megalith::corpus {

/// Visits the records of several ascending readers in ascending order as visit(record, number of its reader). Among
/// equal records that of the first reader comes first. Memory: one window per reader.
template <class Record, class Less, class Visit>
void merge(std::vector<RecordReader<Record>>& readers, const Less& less, const Visit& visit) {
  const auto is_later = [&](std::size_t a, std::size_t b) {
    const Record &x = readers[a].peek(), &y = readers[b].peek();
    return less(y, x) || (!less(x, y) && b < a);
  };
  std::vector<std::size_t> heap;
  for (std::size_t i = 0; i < readers.size(); ++i)
    if (!readers[i].at_end()) heap.push_back(i);
  std::make_heap(heap.begin(), heap.end(), is_later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), is_later);
    RecordReader<Record>& first = readers[heap.back()];
    do {  // while one reader stays first, the heap is not changed: sorted inputs have long sequences of this kind
      visit(first.peek(), heap.back());
      first.next();
    } while (!first.at_end() && (heap.size() == 1 || is_later(heap.front(), heap.back())));
    if (first.at_end())
      heap.pop_back();
    else
      std::push_heap(heap.begin(), heap.end(), is_later);
  }
}

enum class Repeats { keep, drop };

/// Sorts more records than fit in memory. Sorted runs go to files PREFIX.run-N, which are merged. Record has operator<
/// (a total order) and operator==. If it has hash(), which operator< compares first, `threads` threads sort by that.
/// The result depends on neither. Memory: the requested size, at least 1 MiB.
template <class Record, Repeats kRepeats = Repeats::keep>
class ExternalSort {
 public:
  ExternalSort(io::Fs& fs, io::Path prefix, std::size_t memory_bytes, int threads = 1)
      : fs_(fs),
        prefix_(std::move(prefix)),
        memory_(std::max<std::size_t>(memory_bytes, std::size_t{1} << 20)),
        max_records_(memory_ / sizeof(Record)),
        threads_(threads) {}
  ExternalSort(const ExternalSort&) = delete;
  ExternalSort& operator=(const ExternalSort&) = delete;
  ~ExternalSort() {
    try {
      for (const Run& run : runs_)
        if (fs_.exists(run.path)) fs_.unlink(run.path);
    } catch (const Error&) {  // a restart removes them
    }
  }

  void add(const Record& record) {
    if (held_.size() == max_records_) spill();
    if (held_.size() == held_.capacity())
      held_.reserve(std::min(max_records_, std::max<std::size_t>(1024, 2 * held_.size())));
    held_.push_back(record);
  }

  /// Visits all records in order, once.
  template <class Visit>
  void finish(const Visit& visit) {
    if (runs_.empty()) {
      sort_held();
      for (const Record& record : held_) visit(record);
    } else {
      spill();
      std::vector<Record>().swap(held_);
      while (runs_.size() > fan_in()) merge_first_runs();
      merge_runs(0, runs_.size(), visit);
    }
  }

 private:
  struct Run {
    io::Path path;
    std::uint64_t records;
  };
  static constexpr std::size_t kWindow = std::size_t{64} << 10;

  std::size_t fan_in() const { return std::max<std::size_t>(2, memory_ / (2 * kWindow)); }

  void sort_held() {
    if constexpr (requires(const Record& record) { record.hash(); })
      sort_by_hash_in_parallel(
          std::span(held_), [](const Record& record) { return record.hash(); }, threads_);
    else
      std::sort(held_.begin(), held_.end());
    if constexpr (kRepeats == Repeats::drop) held_.erase(std::unique(held_.begin(), held_.end()), held_.end());
  }
  io::Path next_path() {
    io::Path path = prefix_;
    path += str(".run-", made_++);
    return path;
  }
  void spill() {
    if (held_.empty()) return;
    sort_held();
    runs_.push_back({next_path(), held_.size()});
    const auto file = fs_.create(runs_.back().path);
    file->write(std::as_bytes(std::span<const Record>(held_)));
    file->close();
    held_.clear();
  }

  template <class Visit>
  void merge_runs(std::size_t first, std::size_t count, const Visit& visit) {
    std::vector<RecordReader<Record>> readers;
    for (std::size_t i = first; i < first + count; ++i)
      readers.emplace_back(fs_, runs_[i].path, 0, runs_[i].records, kWindow);
    std::optional<Record> last;
    merge(readers, std::less<Record>(), [&](const Record& record, std::size_t) {
      if constexpr (kRepeats == Repeats::drop) {
        if (last && *last == record) return;
        last = record;
      }
      visit(record);
    });
  }
  void merge_first_runs() {
    const std::size_t count = std::min(fan_in(), runs_.size());
    const io::Path path = next_path();
    RecordWriter<Record> merged(fs_, path);
    merge_runs(0, count, [&](const Record& record) { merged.add(record); });
    merged.finish().close();
    for (std::size_t i = 0; i < count; ++i) fs_.unlink(runs_[i].path);
    runs_.erase(runs_.begin(), runs_.begin() + static_cast<std::ptrdiff_t>(count));
    runs_.push_back({path, merged.records()});
  }

  io::Fs& fs_;
  io::Path prefix_;
  std::size_t memory_, max_records_;
  int threads_;
  std::vector<Record> held_;
  std::vector<Run> runs_;
  std::size_t made_ = 0;
};

}  // namespace megalith::corpus
