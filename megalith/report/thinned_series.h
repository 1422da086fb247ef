#pragma once
#include <string>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::apps {

/// The values of a series over steps, in a bounded number of buckets of equally many steps each. A bucket keeps
/// minimum, maximum and mean exactly, so that no peak is lost. Buckets double in width when there would be too many of
/// them: their width is a power of two, and 1 for a short run.
class ThinnedSeries {
 public:
  explicit ThinnedSeries(Index max_buckets) : max_buckets_(max_buckets) {}
  /// `step` counts from 1, in any order. `value` must be finite.
  void add(Index step, double value);
  bool empty() const { return buckets_.empty(); }
  Index width() const { return width_; }  ///< steps of a bucket

  /// {"width":W,"first":S,"mean":[...],"min":[...],"max":[...]}: a number a bucket, null where it has no value, from
  /// the bucket that begins at step S. Where a bucket has one value each, "mean" alone. Where all values are equal,
  /// {"width":W,"first":S,"same":V,"count":buckets}. Five digits a number.
  std::string json() const;

 private:
  struct Bucket {
    double min = 0, max = 0, sum = 0;
    Index count = 0;
    void add(const Bucket& other);
  };
  void double_width();
  /// The bucket of a step is at `bucket - first_`, which makes room for it.
  Bucket& at(Index step);

  Index max_buckets_, width_ = 1;
  Index first_ = 0;  ///< the bucket that buckets_ begins with: (step - 1) / width_
  std::vector<Bucket> buckets_;
};

/// A finite number with five digits, as JSON.
std::string short_number(double value);

}  // namespace megalith::apps
