#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::io {

/// 128 bits as 32 lower-case hex digits, `high` first; and back (nothing unless exactly those).
std::string hex128(std::uint64_t high, std::uint64_t low);
struct Hash128 {
  std::uint64_t high = 0, low = 0;
  bool operator==(const Hash128&) const = default;
  std::string hex() const { return hex128(high, low); }
  static std::optional<Hash128> from_hex(std::string_view digits);
};

/// XXH3-128 of one piece of memory (github.com/Cyan4973/xxHash, doc/xxhash_spec.md). Finds damage, not an attacker.
Hash128 checksum(std::span<const std::byte> bytes);

/// checksum() of bytes that come in pieces.
class RunningChecksum {
 public:
  RunningChecksum();
  ~RunningChecksum();
  RunningChecksum(const RunningChecksum&) = delete;
  RunningChecksum& operator=(const RunningChecksum&) = delete;
  void update(std::string_view bytes);
  Hash128 value() const;  ///< of what has come so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

inline constexpr std::uint64_t kChecksumBlockBytes = std::uint64_t{4} << 20;

/// The checksums of a file: one per block of kChecksumBlockBytes (the last may be shorter; an empty file has none).
struct FileChecksums {
  std::uint64_t bytes = 0;
  std::vector<Hash128> blocks;
  bool operator==(const FileChecksums&) const = default;
  /// One value for the whole file: the checksum of its size and its blocks' checksums.
  Hash128 digest() const;
};

/// Computes FileChecksums from pieces of any length, from memory, before they are written.
class BlockChecksums {
 public:
  BlockChecksums();
  ~BlockChecksums();
  BlockChecksums(const BlockChecksums&) = delete;
  BlockChecksums& operator=(const BlockChecksums&) = delete;

  void update(std::span<const std::byte> bytes);
  /// Call once, at the end.
  FileChecksums finish();

 private:
  void end_block();

  struct State;
  std::unique_ptr<State> state_;  ///< of the block that is being filled
  std::uint64_t filled_ = 0;      ///< bytes of it
  FileChecksums done_;
};

}  // namespace megalith::io
