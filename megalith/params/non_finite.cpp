#include "megalith/params/non_finite.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>

#include "megalith/tensor/dtype.h"

namespace megalith {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();  // without a sign

template <class T>
auto widened(T value) {
  if constexpr (std::is_same_v<T, double>)
    return value;
  else
    return static_cast<float>(value);
}

/// Blocks without such a value are passed over by a loop without an early end, which compilers vectorize.
template <class T>
std::optional<double> first_in(std::span<const T> values) {
  constexpr std::size_t kBlock = 4096;
  for (std::size_t first = 0; first < values.size(); first += kBlock) {
    const std::span<const T> block = values.subspan(first, std::min(kBlock, values.size() - first));
    int count = 0;
    for (const T value : block) count += std::isfinite(widened(value)) ? 0 : 1;
    if (count == 0) continue;
    for (const T value : block)
      if (const double wide = widened(value); !std::isfinite(wide)) return std::isnan(wide) ? kNan : wide;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> non_finite_value(const Tensor& values) {
  return dispatch_float(values.dtype(), "non_finite_value",
                        [&]<class T>() { return first_in(std::span<const T>(values.span<T>())); });
}

Index forward_position(std::string_view parameter) {
  constexpr std::string_view kEmbedding = "embedding.", kLayers = "layers.";
  if (parameter.starts_with(kEmbedding)) return 0;
  if (!parameter.starts_with(kLayers)) return kAfterLayers;
  Index layer = 0;
  std::from_chars(parameter.data() + kLayers.size(), parameter.data() + parameter.size(), layer);
  return layer + 1;
}

void FirstNonFinite::add(std::string_view parameter, const Tensor& values) {
  if (!is_wanted(parameter)) return;
  const std::optional<double> value = non_finite_value(values);
  if (!value) return;
  value_ = value;
  order_ = order_of(parameter);
  name_ = parameter;
}

}  // namespace megalith
