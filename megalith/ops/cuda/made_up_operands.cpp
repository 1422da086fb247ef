#include "megalith/ops/cuda/made_up_operands.h"

#include <algorithm>

#include "megalith/ops/init_kernels.h"

namespace megalith::ops::cuda {
namespace {

constexpr Index kNumbers = Index{1} << 20;  // made once and repeated

/// [kNumbers] normal numbers of a type, with the memory that they lie in.
class Numbers {
 public:
  Numbers(DType dtype, Stream stream)
      : memory_(kNumbers * (size_of(DType::f32) + size_of(dtype)), Device::cuda),
        numbers_(memory_.view({kNumbers}, dtype, kNumbers * size_of(DType::f32))) {
    const Tensor wide = memory_.view({kNumbers}, DType::f32);
    const TensorSlice all = TensorSlice::whole("operands", {kNumbers});
    initialise(stream, {all, Init::normal, 1}, wide, 1);
    cast(stream, wide, numbers_);
  }
  void repeat(std::byte* to, Index bytes, Stream stream) const {
    for (Index done = 0; done < bytes; done += numbers_.bytes())
      device::copy(Device::cuda, to + done, numbers_.raw(), std::min(bytes - done, numbers_.bytes()), stream);
  }

 private:
  Buffer memory_;
  Tensor numbers_;
};

}  // namespace

MadeUpOperands::MadeUpOperands(const GemmProblem& problem, std::span<std::byte> scratch, Index cache_bytes,
                               Stream stream) {
  const GemmBytes bytes = bytes_of(problem);
  const auto space = [](Index part) { return round_up(part, kAlignment); };
  const Index operands =
      space(bytes.a) + space(bytes.b) + space(bytes.c) + space(bytes.vector) + space(bytes.activation);
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
  operands_.vector = put(in, bytes.vector);
  operands_.activation = put(in, bytes.activation);
  others_ = {place, static_cast<std::size_t>(2 * cache_bytes)};
  device::synchronize(Device::cuda, stream);  // the numbers' memory is released after this
}

void MadeUpOperands::fill_cache(Stream stream) const {
  device::fill_bytes(Device::cuda, others_.data(), 0, static_cast<Index>(others_.size()), stream);
}

}  // namespace megalith::ops::cuda
