#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace megalith::corpus {

/// How a signature is cut. Documents that agree in all rows of a band are candidates.
struct Banding {
  int bands = 0, rows = 0;
  int hashes() const { return bands * rows; }
  /// The probability that a pair of this Jaccard similarity becomes a candidate: 1 - (1 - s^rows)^bands.
  double recall(double similarity) const;
  bool operator==(const Banding&) const = default;
};
inline constexpr int kMaxHashes = 256;

/// The banding with the fewest hashes that finds `recall` of the pairs at `similarity` and at most half of those 0.2
/// below. If there is none, the one with that recall that finds the fewest pairs 0.2 below. It has at most kMaxHashes
/// hashes, a multiple of 4. 20 x 5 for (0.95, 0.7). bands is 0 when no banding reaches the recall.
Banding choose_banding(double recall, double similarity);
/// The banding that reaches the recall with at most as many hashes as `asked` and as many rows as possible; else
/// choose_banding().
Banding nearest_banding(const Banding& asked, double recall, double similarity);

/// Min-hash signatures (Broder 1997) of sets of 64-bit hashes, and their bands. Hash i of an element x is a_i * x + b_i
/// mod 2^32, where x is the upper half of the element and a_i is odd. Elements are hashes already, so no better mixing
/// is needed (measured in tests/corpus/minhash_test.cpp). A signature uses the CPU's widest vectors: 8 cycles per
/// element for 100 hashes with AVX-512.
class MinHash {
 public:
  MinHash(const Banding& banding, std::uint64_t seed);
  const Banding& banding() const { return banding_; }

  /// Writes a hash for each band to `out` [bands]. `elements` is not empty, and repeats do not matter.
  void bands(std::span<const std::uint64_t> elements, std::span<std::uint64_t> out);
  /// The signature of the last call of bands(): [hashes].
  std::span<const std::uint32_t> signature() const {
    return {minima_.data(), static_cast<std::size_t>(banding_.hashes())};
  }

 private:
  Banding banding_;
  std::vector<std::uint32_t> factors_, offsets_, minima_;  // padded to whole vectors
  std::vector<std::uint32_t> upper_;                       // upper halves of the elements
};

/// minima[i] = min over elements x of factors[i] * x + offsets[i] mod 2^32, for i < hashes, a multiple of 16.
struct MinHashWork {
  const std::uint32_t* elements = nullptr;
  std::size_t size = 0;
  const std::uint32_t *factors = nullptr, *offsets = nullptr;
  std::uint32_t* minima = nullptr;
  std::size_t hashes = 0;
};
using MinHashKernel = void (*)(const MinHashWork&);

/// A build of the kernel for one instruction set that this CPU has. The last one is the widest.
struct NamedKernel {
  std::string_view name;
  MinHashKernel kernel;
};
std::vector<NamedKernel> minhash_kernels();

}  // namespace megalith::corpus
