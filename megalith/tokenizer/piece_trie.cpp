#include "megalith/tokenizer/piece_trie.h"

namespace megalith::tokenizer {

std::size_t PieceTrie::slot(std::uint64_t key) const {
  std::size_t i = static_cast<std::size_t>((key * 0x9e3779b97f4a7c15ULL) >> 32) & (edges_.size() - 1);
  while (edges_[i].key != key && edges_[i].key != kFree) i = (i + 1) & (edges_.size() - 1);
  return i;
}

void PieceTrie::grow() {
  std::vector<Edge> old(2 * edges_.size());
  old.swap(edges_);
  for (const Edge& edge : old)
    if (edge.key != kFree) edges_[slot(edge.key)] = edge;
}

void PieceTrie::insert(std::uint32_t root, std::string_view token, std::int32_t id) {
  std::uint32_t node = root;
  for (const char c : token) {
    const std::uint64_t key = std::uint64_t{node} << 8 | static_cast<unsigned char>(c);
    if (edges_[slot(key)].key == kFree) {
      if (2 * ++num_edges_ > edges_.size()) grow();
      edges_[slot(key)] = {key, static_cast<std::uint32_t>(ids_.size())};
      ids_.push_back(-1);
    }
    node = edges_[slot(key)].to;
  }
  ids_[node] = id;
}

PieceTrie::Found PieceTrie::longest(std::uint32_t root, std::string_view text) const {
  Found found;
  std::uint32_t node = root;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Edge& edge = edges_[slot(std::uint64_t{node} << 8 | static_cast<unsigned char>(text[i]))];
    if (edge.key == kFree) break;
    node = edge.to;
    if (ids_[node] >= 0) found = {ids_[node], i + 1};
  }
  return found;
}

}  // namespace megalith::tokenizer
