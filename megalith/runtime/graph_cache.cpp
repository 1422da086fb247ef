#include "megalith/runtime/graph_cache.h"

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith {

std::size_t GraphCache::Hash::operator()(const Key& key) const {
  const auto pair = [](Index high, Index low) {
    return static_cast<std::uint64_t>(high) << 32 | static_cast<std::uint64_t>(low);
  };
  return static_cast<std::size_t>(hash_combine(pair(key.chunk, key.instance), pair(key.layer, key.segment)));
}

void GraphCache::set_state(State state) {
  if (state == State::capturing && !captured_.empty()) {
    throw InternalError(
        str("[graphs] ", name_, ": ", captured_.size(), " graphs are there already: clear() them first"));
  }
  state_ = state;
  next_ = 0;
}

void GraphCache::prepare(Exec& ex) {
  for (auto& [key, captured] : captured_) captured.graph.prepare(ex);
}

void GraphCache::end_step() const {
  if (state_ == State::eager || state_ == State::capturing || next_ == order_.size()) return;
  throw InternalError(str("[graphs] ", name_, ": the step ends where the captured step launched ",
                          describe(order_[next_]), ": a step launches all that the captured one launched"));
}

void GraphCache::clear() {
  captured_.clear();
  order_.clear();
  state_ = State::eager;
  next_ = 0;
  launches_ = {};
}

GraphStats GraphCache::stats() const {
  GraphStats sum;
  for (const auto& [key, captured] : captured_) sum += captured.graph.stats();
  return sum;
}

std::string GraphCache::describe(const Key& key) const {
  return str("chunk ", key.chunk, ", instance ", key.instance, ", layer ", key.layer, ", segment ", key.segment);
}

const GraphCache::Captured& GraphCache::next(const Key& key) {
  if (next_ < order_.size() && order_[next_] == key) {
    ++next_;
    return captured_.at(key);
  }
  if (!captured_.contains(key)) {
    throw InternalError(str("[graphs] ", name_, ": there is no graph of ", describe(key),
                            ": the step is not cut as the one that was captured"));
  }
  throw InternalError(str("[graphs] ", name_, ": ", describe(key), " is launched where the captured step launched ",
                          next_ < order_.size() ? describe(order_[next_]) : "nothing more",
                          ": graphs share memory, so they run in the order in which they were captured"));
}

}  // namespace megalith
