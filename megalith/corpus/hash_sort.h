#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "megalith/base/started_threads.h"

namespace megalith::corpus {

// Sorts by hashes, whose bits are as good as random. It is a radix sort from the upper byte on, in place ("American
// flag sort", McIlroy, Bostic and McIlroy 1993). For 3,200 hashes it takes a quarter of the time of std::sort.

/// Puts the records into buckets by the byte of key(record) at `shift`, in place. Returns the ends of the buckets.
template <class Record, class Key>
std::array<std::size_t, 256> into_buckets(std::span<Record> records, const Key& key, int shift) {
  const auto bucket_of = [&](const Record& record) { return static_cast<std::size_t>(key(record) >> shift & 0xFF); };
  std::array<std::size_t, 256> next{}, ends{};
  for (const Record& record : records) ++ends[bucket_of(record)];
  std::size_t begin = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    next[i] = begin;
    begin = ends[i] += begin;
  }
  for (std::size_t bucket = 0; bucket < ends.size(); ++bucket) {
    while (next[bucket] < ends[bucket]) {
      Record record = records[next[bucket]];
      for (std::size_t to = bucket_of(record); to != bucket; to = bucket_of(record))
        std::swap(record, records[next[to]++]);
      records[next[bucket]++] = record;
    }
  }
  return ends;
}

/// Sorts by operator<, which compares key(record), 64 bits, before anything else. `shift`: the position of the upper
/// byte in which the keys can differ.
template <class Record, class Key>
void sort_by_hash(std::span<Record> records, const Key& key, int shift = 56) {
  constexpr std::size_t kFew = 256;  // std::sort is as fast
  if (records.size() <= kFew || shift < 0) return std::sort(records.begin(), records.end());
  std::size_t begin = 0;
  for (const std::size_t end : into_buckets(records, key, shift)) {
    if (end - begin > 1) sort_by_hash(records.subspan(begin, end - begin), key, shift - 8);
    begin = end;
  }
}

/// The same with up to `threads` threads, which take the buckets of the upper byte.
template <class Record, class Key>
void sort_by_hash_in_parallel(std::span<Record> records, const Key& key, int threads) {
  constexpr std::size_t kWorthThreads = std::size_t{1} << 15;
  if (threads <= 1 || records.size() < kWorthThreads) return sort_by_hash(records, key);
  const std::array<std::size_t, 256> ends = into_buckets(records, key, 56);
  std::atomic<std::size_t> next = 0;
  const auto sort_some = [&] {
    for (std::size_t bucket = next++; bucket < ends.size(); bucket = next++) {
      const std::size_t begin = bucket == 0 ? 0 : ends[bucket - 1];
      if (ends[bucket] - begin > 1) sort_by_hash(records.subspan(begin, ends[bucket] - begin), key, 48);
    }
  };
  const StartedThreads helpers(threads - 1, sort_some);
  sort_some();
}

}  // namespace megalith::corpus
