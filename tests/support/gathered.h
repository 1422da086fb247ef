#pragma once
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "megalith/tensor/tensor.h"
#include "megalith/tensor/tensor_slice.h"

namespace megalith::support {

/// Full tensors put together from the slices of many ranks, in f64: what grids are compared by. What several ranks put
/// must be the same. Thread-safe.
class Gathered {
 public:
  void put(const TensorSlice& slice, const Tensor& values) {
    std::vector<double> local(static_cast<std::size_t>(values.numel()));
    dispatch_float(values.dtype(), "Gathered", [&]<class T>() {
      for (std::size_t i = 0; i < local.size(); ++i) local[i] = converted<double>(values.data<T>()[i]);
    });
    const std::lock_guard lock(mutex_);
    std::vector<double>& global = tensors_[slice.name];
    global.resize(static_cast<std::size_t>(slice.global.numel()), std::nan(""));
    for (std::size_t i = 0; i < local.size(); ++i) {
      Index left = static_cast<Index>(i), place = 0, stride = 1;
      for (int d = slice.global.rank(); d-- > 0;) {
        place += (slice.offset[static_cast<std::size_t>(d)] + left % slice.local[d]) * stride;
        left /= slice.local[d];
        stride *= slice.global[d];
      }
      put_one(slice.name, global[static_cast<std::size_t>(place)], local[i]);
    }
  }
  void put(const std::string& name, const Tensor& values) { put(TensorSlice::whole(name, values.shape()), values); }
  /// A tensor that was put together elsewhere, with NaN where nobody has put anything.
  void merge(const std::string& name, const std::vector<double>& values) {
    const std::lock_guard lock(mutex_);
    std::vector<double>& global = tensors_[name];
    global.resize(values.size(), std::nan(""));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!std::isnan(values[i])) put_one(name, global[i], values[i]);
    }
  }

  const std::map<std::string, std::vector<double>>& tensors() const { return tensors_; }
  const std::vector<double>& at(const std::string& name) const { return tensors_.at(name); }
  /// The tensors for which ranks have put different values.
  const std::set<std::string>& disagreeing() const { return disagreeing_; }

 private:
  void put_one(const std::string& name, double& place, double value) {
    if (!std::isnan(place) && place != value) disagreeing_.insert(name);
    place = value;
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<double>> tensors_;
  std::set<std::string> disagreeing_;
};

/// Largest difference over the largest magnitude of `want`; NaN (from an element nobody put) is never small.
inline double relative_error(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::nan("");
  double difference = 0, largest = 1e-300;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(got[i] - want[i]);
    if (!(d <= difference)) difference = d;  // keeps NaN
    if (std::isnan(difference)) return difference;
    largest = std::max(largest, std::abs(want[i]));
  }
  return difference / largest;
}

}  // namespace megalith::support
