#include "megalith/tensor/param.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/philox.h"
#include "megalith/base/str.h"

namespace megalith {
namespace {

constexpr Index kParamAlignment =
    64;  // elements: every parameter starts on a cache line (f32, f64) and on a CUDA segment (f32)

template <class T>
void fill_normal(const Param& param, std::uint64_t seed) {
  const TensorSlice& slice = param.spec.slice;
  const RandomSite site{.seed = hash_combine(seed, fnv1a(slice.name))};
  const bool matrix = slice.global.rank() == 2;
  const Index rows = matrix ? slice.local[0] : 1;
  const Index columns = matrix ? slice.local[1] : slice.local[0];
  const Index row_offset = matrix ? slice.offset[0] : 0;
  const Index column_offset = slice.offset[matrix ? 1 : 0];
  const Index stride = matrix ? slice.global[1] : 0;
  T* out = param.value.data<T>();
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) {
      const auto element = static_cast<std::uint64_t>((r + row_offset) * stride + c + column_offset);
      out[r * columns + c] = static_cast<T>(param.spec.init_std * site.normal(element));
    }
  }
}

}  // namespace

ParamBuffer::ParamBuffer(std::vector<ParamSpec> specs, DType dtype) : dtype_(dtype) {
  std::stable_partition(specs.begin(), specs.end(), [](const ParamSpec& s) { return s.ownership == Ownership::owner; });
  for (ParamSpec& spec : specs) {
    Param param;
    param.spec = std::move(spec);
    param.offset = numel_;
    param.value = Tensor(nullptr, param.spec.held, dtype);
    param.grad = Tensor(nullptr, param.spec.held, dtype);
    numel_ = round_up(numel_ + param.spec.held.numel(), kParamAlignment);
    if (param.spec.ownership == Ownership::owner) owned_numel_ = numel_;
    params_.push_back(std::move(param));
  }
  values_ = Tensor(nullptr, {numel_}, dtype);
  grads_ = Tensor(nullptr, {numel_}, dtype);
}

void ParamBuffer::allocate(MemoryLedger& ledger) {
  const Index bytes = numel_ * size_of(dtype_);
  value_memory_ = ledger.take("parameters", bytes);
  grad_memory_ = ledger.take("gradients", bytes);
  values_ = value_memory_.view({numel_}, dtype_);
  grads_ = grad_memory_.view({numel_}, dtype_);
  for (Param& param : params_) {
    param.value = part(values_, param);
    param.grad = part(grads_, param);
  }
}

Param& ParamBuffer::at(std::string_view name) {
  const auto found = std::find_if(params_.begin(), params_.end(), [&](const Param& p) { return p.name() == name; });
  if (found == params_.end())
    throw InternalError(str("[ParamBuffer::at] parameter ", name, ": this rank holds none of that name"));
  return *found;
}

Tensor ParamBuffer::part(const Tensor& flat, const Param& param) const {
  return flat.rows(param.offset, param.spec.held.numel()).reshaped(param.spec.held);
}

void initialise(Param& param, std::uint64_t seed) {
  dispatch_float(param.value.dtype(), "initialise", [&]<class T>() {
    std::fill_n(param.value.data<T>(), param.value.numel(), param.spec.init == Init::ones ? T{1} : T{0});
    if (param.spec.init == Init::normal) fill_normal<T>(param, seed);
  });
}

}  // namespace megalith
