#include "megalith/checkpoint/difference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string_view>
#include <vector>

#include "megalith/tensor/dtype.h"
#include "megalith/tensor/memory.h"

namespace megalith::checkpoint {
namespace {

constexpr Index kBlockElements = Index{1} << 20;

/// Elements of a block as f64, of any dtype.
void widen(const Tensor& values, std::vector<double>& to) {
  to.resize(static_cast<std::size_t>(values.numel()));
  const auto copy = [&]<class T>(const T*) {
    std::ranges::transform(values.span<T>(), to.begin(), [](T value) { return converted<double>(value); });
  };
  switch (values.dtype()) {
    case DType::i64:
      return copy(static_cast<const std::int64_t*>(nullptr));
    case DType::i32:
      return copy(static_cast<const std::int32_t*>(nullptr));
    case DType::u64:
      return copy(static_cast<const std::uint64_t*>(nullptr));
    case DType::u8:
      return copy(static_cast<const std::uint8_t*>(nullptr));
    default:
      dispatch_float(values.dtype(), "compare_tensors", [&]<class T>() { copy(static_cast<const T*>(nullptr)); });
  }
}

/// Blocks of a tensor of one checkpoint, as f64.
class BlockReader {
 public:
  BlockReader(CheckpointReader& reader, const TensorRecord& tensor)
      : reader_(reader),
        dtype_(tensor.dtype),
        memory_(std::min(kBlockElements, tensor.shape.numel()) * size_of(tensor.dtype)) {}

  const std::vector<double>& read(const TensorSlice& block) {
    const Tensor values = memory_.view(block.local, dtype_);
    reader_.read(block, values);
    widen(values, values_);
    return values_;
  }

 private:
  CheckpointReader& reader_;
  DType dtype_;
  Buffer memory_;
  std::vector<double> values_;
};

/// The index of an element in row-major order.
std::array<Index, Shape::kMaxRank> index_of(const Shape& shape, Index element) {
  std::array<Index, Shape::kMaxRank> index{};
  for (int d = shape.rank(); d-- > 0;) {
    index[static_cast<std::size_t>(d)] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

bool is_same_bits(double a, double b) { return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b); }

/// |a - b|; NaN if only one is finite, or both are infinite and differ.
double distance(double a, double b) { return is_same_bits(a, b) ? 0.0 : std::abs(a - b); }

void compare_values(CheckpointReader& a, CheckpointReader& b, TensorDifference& found) {
  BlockReader left(a, *found.a), right(b, *found.b);
  bool any = false;
  for_each_block(TensorSlice::whole(found.name, found.a->shape), kBlockElements,
                 [&](const TensorSlice& block, Index first) {
                   const std::vector<double>&of_a = left.read(block), &of_b = right.read(block);
                   for (std::size_t i = 0; i < of_a.size(); ++i) {
                     for (const double value : {of_a[i], of_b[i]})
                       if (std::isfinite(value)) found.scale = std::max(found.scale, std::abs(value));
                     if (is_same_bits(of_a[i], of_b[i])) continue;
                     ++found.different;
                     const double by = distance(of_a[i], of_b[i]);
                     const bool is_larger = !std::isnan(found.largest) && !(by <= found.largest);
                     if (any && !is_larger) continue;
                     any = true;
                     found.largest = by;
                     found.at = index_of(found.a->shape, first + static_cast<Index>(i));
                     found.value_a = of_a[i];
                     found.value_b = of_b[i];
                   }
                 });
}

}  // namespace

bool TensorDifference::is_within(double part) const {
  if (kind == Kind::equal) return true;
  return kind == Kind::values && largest <= part * scale;
}

void compare_tensors(CheckpointReader& a, CheckpointReader& b,
                     const std::function<void(const TensorDifference&)>& take) {
  using enum TensorDifference::Kind;
  std::set<std::string_view> names;
  for (const Manifest* const manifest : {&a.manifest(), &b.manifest()})
    for (const TensorRecord& tensor : manifest->tensors) names.insert(tensor.name);
  for (const std::string_view name : names) {
    TensorDifference found{.name = std::string(name), .a = a.manifest().find(name), .b = b.manifest().find(name)};
    if (found.a == nullptr || found.b == nullptr) {
      found.kind = found.a == nullptr ? only_in_b : only_in_a;
    } else if (found.a->shape != found.b->shape) {
      found.kind = shape;
    } else {
      compare_values(a, b, found);
      found.kind = found.different == 0 && found.a->dtype == found.b->dtype ? equal : values;
    }
    take(found);
  }
}

void read_mean(std::span<const std::unique_ptr<CheckpointReader>> readers, const TensorSlice& slice,
               const Tensor& into) {
  const Buffer memory(std::min(kBlockElements, slice.local.numel()) * size_of(into.dtype()));
  std::vector<double> sums;
  const Tensor flat = into.reshaped({into.numel()});
  dispatch_wide(into.dtype(), "read_mean", [&]<class T>() {
    for_each_block(slice, kBlockElements, [&](const TensorSlice& block, Index first) {
      sums.assign(static_cast<std::size_t>(block.local.numel()), 0.0);
      const Tensor values = memory.view(block.local, into.dtype());
      for (const auto& reader : readers) {
        reader->read(block, values);
        std::ranges::transform(sums, values.span<T>(), sums.begin(),
                               [](double sum, T value) { return sum + static_cast<double>(value); });
      }
      const auto count = static_cast<double>(readers.size());
      std::ranges::transform(sums, flat.rows(first, block.local.numel()).span<T>().begin(),
                             [count](double sum) { return static_cast<T>(sum / count); });
    });
  });
}

}  // namespace megalith::checkpoint
