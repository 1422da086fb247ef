#include "megalith/report/thinned_series.h"

#include <algorithm>
#include <cstdio>

#include "megalith/base/str.h"

namespace megalith::apps {

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

void ThinnedSeries::Bucket::add(const Bucket& other) {
  if (other.count == 0) return;
  min = count == 0 ? other.min : std::min(min, other.min);
  max = count == 0 ? other.max : std::max(max, other.max);
  sum += other.sum;
  count += other.count;
}

void ThinnedSeries::double_width() {
  const Index first = first_ / 2, last = (first_ + std::ssize(buckets_) - 1) / 2;
  std::vector<Bucket> wider(static_cast<std::size_t>(last - first + 1));
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    wider[static_cast<std::size_t>((first_ + static_cast<Index>(i)) / 2 - first)].add(buckets_[i]);
  buckets_ = std::move(wider);
  first_ = first;
  width_ *= 2;
}

ThinnedSeries::Bucket& ThinnedSeries::at(Index step) {
  if (buckets_.empty()) {
    first_ = (step - 1) / width_;
    return buckets_.emplace_back();
  }
  const auto reach = [&] {
    const Index bucket = (step - 1) / width_;
    return std::max(bucket + 1, first_ + std::ssize(buckets_)) - std::min(bucket, first_);
  };
  while (reach() > max_buckets_) double_width();
  const Index bucket = (step - 1) / width_;
  if (bucket < first_) {
    buckets_.insert(buckets_.begin(), static_cast<std::size_t>(first_ - bucket), Bucket());
    first_ = bucket;
  }
  const auto place = static_cast<std::size_t>(bucket - first_);
  if (place >= buckets_.size()) buckets_.resize(place + 1);
  return buckets_[place];
}

void ThinnedSeries::add(Index step, double value) {
  at(step).add({.min = value, .max = value, .sum = value, .count = 1});
}

std::string ThinnedSeries::json() const {
  std::string means, mins, maxs;
  bool is_same = true, has_single = true;
  const Bucket* some = nullptr;
  for (const Bucket& bucket : buckets_) {
    const auto append = [&](std::string& list, double value) {
      list += str(list.empty() ? "" : ",", bucket.count == 0 ? "null" : short_number(value));
    };
    append(means, bucket.sum / static_cast<double>(std::max<Index>(1, bucket.count)));
    append(mins, bucket.min);
    append(maxs, bucket.max);
    has_single = has_single && bucket.count <= 1;
    if (some == nullptr) some = &bucket;
    is_same = is_same && bucket.count > 0 && bucket.min == some->min && bucket.max == some->min;
  }
  const std::string head = str("{\"width\":", width_, ",\"first\":", first_ * width_ + 1);
  if (is_same && some != nullptr)
    return str(head, ",\"same\":", short_number(some->min), ",\"count\":", buckets_.size(), '}');
  if (has_single) return str(head, ",\"mean\":[", means, "]}");
  return str(head, ",\"mean\":[", means, "],\"min\":[", mins, "],\"max\":[", maxs, "]}");
}

}  // namespace megalith::apps
