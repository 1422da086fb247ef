#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// One call of one rank goes wrong, as a mistake in a layer or a race would make it.
struct Mutation {
  enum class Kind { skip, twice, count, dtype, reduce, swap };
  Kind kind = Kind::skip;
  Index call = 0;  ///< which one, from 0, counted from when the mutation was set
};

/// Carries a Mutation out, as the hook of a rank's calls.
class Mutator final : public CallHook {
 public:
  explicit Mutator(Mutation mutation) : mutation_(mutation) {}

  void apply(const Call& call, const std::function<void(const Call&)>& make) override;
  /// Whether the call was reached and could be mutated so: a barrier has no count, a broadcast no reduction.
  bool applied() const { return applied_; }
  Index calls() const { return calls_; }

 private:
  std::optional<Call> altered(Call call) const;

  Mutation mutation_;
  Index calls_ = 0;
  bool applied_ = false;
  std::function<void()> deferred_;
};

/// Another type of the same size.
inline std::optional<DType> disguised(DType dtype) {
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

inline std::optional<Call> Mutator::altered(Call call) const {
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

inline void Mutator::apply(const Call& call, const std::function<void(const Call&)>& make) {
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

/// Makes one of the coming calls of this rank go wrong.
inline Mutator& mutate(World& world, const Mutation& mutation) {
  auto mutator = std::make_unique<Mutator>(mutation);
  Mutator& made = *mutator;
  world.set_hook(std::move(mutator));
  return made;
}

}  // namespace megalith::comm
