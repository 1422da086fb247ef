#include "megalith/tensor/param.h"

#include <algorithm>
#include <optional>
#include <tuple>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith {
namespace {

/// Elements: every parameter starts on a cache line and, in any dtype, where the widest loads of a GPU may.
constexpr Index kParamAlignment = 128;

}  // namespace

ParamBuffer::ParamBuffer(std::vector<ParamSpec> specs, const Policy& policy) : policy_(policy) {
  std::stable_sort(specs.begin(), specs.end(), [](const ParamSpec& a, const ParamSpec& b) {
    const auto place = [](const ParamSpec& s) {
      return std::tuple(s.ownership != Ownership::owner, s.grad_rows == GradRows::some,
                        s.first_grad != FirstGrad::replaced);
    };
    return place(a) < place(b);
  });
  std::optional<Ownership> partial_ownership;
  for (ParamSpec& spec : specs) {
    Param param;
    param.spec = std::move(spec);
    param.offset = numel_;
    param.value = Tensor(nullptr, param.spec.held, policy.compute);
    param.master = Tensor(nullptr, param.spec.held, policy.master);
    param.grad = Tensor(nullptr, param.spec.held, policy.master);
    numel_ = round_up(numel_ + param.spec.held.numel(), kParamAlignment);
    if (param.spec.ownership == Ownership::owner) owned_numel_ = numel_;
    if (param.spec.grad_rows == GradRows::some) {
      if (!partial_ownership) {
        partial_ownership = param.spec.ownership;
        partial_begin_ = param.offset;
      }
      if (partial_ownership != param.spec.ownership) {
        throw InternalError(str("[ParamBuffer] ", param.name(),
                                " with GradRows::some: must be owned, or a replica, as all others of this rank are"));
      }
      partial_numel_ = numel_ - partial_begin_;
    }
    params_.push_back(std::move(param));
  }
  values_ = Tensor(nullptr, {numel_}, policy.compute);
  masters_ = Tensor(nullptr, {numel_}, policy.master);
  grads_ = Tensor(nullptr, {numel_}, policy.master);
}

BytesByOwner ParamBuffer::bytes() const {
  const Index flat = numel_ * size_of(policy_.master);
  BytesByOwner bytes = {{"parameters", flat}, {"gradients", flat}};
  if (has_copy()) bytes["parameter copies"] = numel_ * size_of(policy_.compute);
  return bytes;
}

void ParamBuffer::allocate(MemoryLedger& ledger) {
  const BytesByOwner wanted = bytes();
  master_memory_ = ledger.take("parameters", wanted.at("parameters"));
  grad_memory_ = ledger.take("gradients", wanted.at("gradients"));
  masters_ = master_memory_.view({numel_}, policy_.master);
  grads_ = grad_memory_.view({numel_}, policy_.master);
  values_ = masters_;
  if (has_copy()) {
    copy_memory_ = ledger.take("parameter copies", wanted.at("parameter copies"));
    values_ = copy_memory_.view({numel_}, policy_.compute);
  }
  summed_grads_ = {summed_grads_of(Ownership::owner), summed_grads_of(Ownership::replica)};
  for (Param& param : params_) {
    param.value = part(values_, param);
    param.master = part(masters_, param);
    param.grad = part(grads_, param);
  }
}

Tensor ParamBuffer::summed_grads_of(Ownership ownership) const {
  const Index end = ownership == Ownership::owner ? owned_numel_ : numel_;
  const auto first = std::find_if(params_.begin(), params_.end(), [&](const Param& p) {
    return p.spec.ownership == ownership && p.spec.first_grad == FirstGrad::summed;
  });
  const Index begin = first == params_.end() ? end : first->offset;
  return grads_.rows(begin, end - begin);
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

}  // namespace megalith
