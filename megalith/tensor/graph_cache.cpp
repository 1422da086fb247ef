#include "megalith/tensor/graph_cache.h"

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith {

std::size_t GraphCache::Hash::operator()(const Key& key) const {
  const auto pair = [](Index high, Index low) {
    return static_cast<std::uint64_t>(high) << 32 | static_cast<std::uint64_t>(low);
  };
  return static_cast<std::size_t>(hash_combine(pair(key.chunk, key.instance), pair(key.layer, key.piece)));
}

void GraphCache::set_state(State state) {
  if (state == State::capturing && !pieces_.empty()) {
    throw InternalError(str("[graphs] ", name_, ": ", pieces_.size(), " graphs are there already: clear() them first"));
  }
  state_ = state;
}

void GraphCache::clear() {
  pieces_.clear();
  state_ = State::eager;
}

const GraphCache::Captured& GraphCache::at(const Key& key) const {
  const auto found = pieces_.find(key);
  if (found != pieces_.end()) return found->second;
  throw InternalError(str("[graphs] ", name_, ": there is no graph of chunk ", key.chunk, ", instance ", key.instance,
                          ", layer ", key.layer, ", piece ", key.piece,
                          ": the step is not cut as the one that was captured"));
}

}  // namespace megalith
