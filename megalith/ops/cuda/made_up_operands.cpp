#include "megalith/ops/cuda/made_up_operands.h"

#include <algorithm>

#include "megalith/ops/elementwise_kernels.h"
#include "megalith/ops/init_kernels.h"
#include "megalith/ops/quantise_kernels.h"

namespace megalith::ops::cuda {
namespace {

constexpr Index kNumbers = Index{1} << 20;  // made once and repeated
constexpr Index kScaleBytes = kNumbers / kScaleBlock * size_of(DType::f32);

/// [kNumbers] normal numbers of a type (u8: their codes in E4M3), with the memory that they lie in.
class Numbers {
 public:
  Numbers(DType dtype, Stream stream)
      : memory_(kNumbers * (size_of(DType::f32) + size_of(dtype)) + kScaleBytes, Device::cuda),
        numbers_(memory_.view({kNumbers}, dtype, kNumbers * size_of(DType::f32))) {
    const Tensor wide = memory_.view({kNumbers}, DType::f32);
    const TensorSlice all = TensorSlice::whole("operands", {kNumbers});
    initialise(stream, {all, Init::normal, 1}, wide, 1);
    if (dtype == DType::u8)
      quantise_all(wide, stream);
    else
      cast(stream, wide, numbers_);
  }
  void repeat(std::byte* to, Index bytes, Stream stream) const {
    for (Index done = 0; done < bytes; done += numbers_.bytes())
      device::copy(Device::cuda, to + done, numbers_.raw(), std::min(bytes - done, numbers_.bytes()), stream);
  }

 private:
  void quantise_all(const Tensor& wide, Stream stream) {
    const Shape matrix{kNumbers / kScaleBlock, kScaleBlock};
    const Tensor scales = memory_.view({1, matrix[0]}, DType::f32, memory_.bytes() - kScaleBytes);
    quantise(stream, {.x = wide.reshaped(matrix), .straight = {numbers_.reshaped(matrix), scales}}, {});
  }

  Buffer memory_;
  Tensor numbers_;
};

}  // namespace

MadeUpOperands::MadeUpOperands(const GemmProblem& problem, std::span<std::byte> scratch, Index cache_bytes,
                               Stream stream) {
  const GemmBytes bytes = bytes_of(problem);
  const auto space = [](Index part) { return round_up(part, kAlignment); };
  const Index operands = space(bytes.a) + space(bytes.b) + space(bytes.c) + space(bytes.vector) +
                         space(bytes.activation) + space(bytes.a_scales) + space(bytes.b_scales);
  const Index all = operands + 2 * cache_bytes;
  if (static_cast<Index>(scratch.size()) < all) own_ = Buffer(all, Device::cuda);
  std::byte* place = own_.bytes() > 0 ? own_.data() : scratch.data();
  const Numbers in(problem.in, stream), out(problem.out, stream);
  const auto put = [&](const Numbers& numbers, Index part) -> std::byte* {
    if (part == 0) return nullptr;
    std::byte* const begin = place;
    place += space(part);
    numbers.repeat(begin, part, stream);
    return begin;
  };
  operands_.a = put(in, bytes.a);
  operands_.b = put(in, bytes.b);
  operands_.c = put(out, bytes.c);
  operands_.vector = put(bias_dtype(problem) == problem.in ? in : out, bytes.vector);
  operands_.activation = put(in, bytes.activation);
  const auto put_scales = [&](Index part) {
    std::byte* const begin = place;
    place += space(part);
    const Index count = part / size_of(DType::f32);
    if (part > 0) fill(stream, Tensor(begin, {count}, DType::f32), 0.01);
    return part > 0 ? begin : nullptr;
  };
  operands_.a_scales = put_scales(bytes.a_scales);
  operands_.b_scales = put_scales(bytes.b_scales);
  others_ = {place, static_cast<std::size_t>(2 * cache_bytes)};
  device::synchronize(Device::cuda, stream);  // the numbers' memory is released after this
}

void MadeUpOperands::fill_cache(Stream stream) const {
  device::fill_bytes(Device::cuda, others_.data(), 0, static_cast<Index>(others_.size()), stream);
}

}  // namespace megalith::ops::cuda
