#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace megalith::tokenizer {

/// Finds the longest token at the beginning of a text. A trie, stored as a hash table of (node, byte).
class PieceTrie {
 public:
  void insert(std::uint32_t root, std::string_view token, std::int32_t id);
  /// Its id and number of bytes; id < 0: there is none.
  struct Found {
    std::int32_t id = -1;
    std::size_t size = 0;
  };
  Found longest(std::uint32_t root, std::string_view text) const;

  static constexpr std::uint32_t kWord = 0, kContinuation = 1;  ///< roots

 private:
  static constexpr std::uint64_t kFree = ~std::uint64_t{0};
  struct Edge {
    std::uint64_t key = kFree;  // node * 256 + byte
    std::uint32_t to = 0;
  };
  std::size_t slot(std::uint64_t key) const;
  void grow();

  std::vector<Edge> edges_ = std::vector<Edge>(64);  // a power of two, at most half full
  std::size_t num_edges_ = 0;
  std::vector<std::int32_t> ids_ = {-1, -1};  // by node
};

}  // namespace megalith::tokenizer
