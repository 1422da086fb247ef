#include "megalith/comm/mutation.h"

#include <utility>

namespace megalith::comm {
namespace {

/// Another type of the same size.
std::optional<DType> disguised(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return DType::i64;
    case DType::f32:
      return DType::i32;
    case DType::i64:
      return DType::u64;
    case DType::u64:
      return DType::i64;
    case DType::i32:
      return DType::f32;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<Call> Mutator::altered(Call call) const {
  switch (mutation_.kind) {
    case Mutation::Kind::count:
      if (call.count == 0) return std::nullopt;
      call.count -= 1;
      return call;
    case Mutation::Kind::dtype:
      if (!disguised(call.dtype)) return std::nullopt;
      call.dtype = *disguised(call.dtype);
      return call;
    case Mutation::Kind::reduce:
      if (call.op != Op::all_reduce && call.op != Op::reduce_scatter) return std::nullopt;
      call.reduce = call.reduce == Reduce::sum ? Reduce::max : Reduce::sum;
      return call;
    default:
      return call;
  }
}

void Mutator::apply(const Call& call, const std::function<void(const Call&)>& make) {
  if (calls_++ != mutation_.call) {
    make(call);
    if (const auto late = std::exchange(deferred_, nullptr)) late();
    return;
  }
  const std::optional<Call> changed = altered(call);
  applied_ = changed.has_value();
  switch (mutation_.kind) {
    case Mutation::Kind::skip:
      return;
    case Mutation::Kind::twice:
      make(call);
      return make(call);
    case Mutation::Kind::swap:
      deferred_ = [call, make] { make(call); };
      return;
    default:
      return make(changed.value_or(call));
  }
}

}  // namespace megalith::comm
