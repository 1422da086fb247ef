#pragma once
#include <functional>
#include <optional>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// For tests: one call of one rank goes wrong, as a mistake in a layer or a race would make it.
struct Mutation {
  enum class Kind { skip, twice, count, dtype, reduce, swap };
  Kind kind = Kind::skip;
  Index call = 0;  ///< which one, from 0, counted from when the mutation was set
};

/// Carries a Mutation out. Every call of the rank passes through apply() while one is set.
class Mutator {
 public:
  explicit Mutator(Mutation mutation) : mutation_(mutation) {}

  /// Makes the call by make(call), or what became of it.
  void apply(const Call& call, const std::function<void(const Call&)>& make);
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

}  // namespace megalith::comm
