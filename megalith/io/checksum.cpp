#include "megalith/io/checksum.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <xxhash.h>

#include "megalith/base/text.h"

namespace megalith::io {
namespace {

Hash128 from_xxh(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }

}  // namespace

std::string hex128(std::uint64_t high, std::uint64_t low) { return hex64(high) + hex64(low); }

std::optional<Hash128> Hash128::from_hex(std::string_view digits) {
  if (digits.size() != 32 || digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  Hash128 hash;
  std::from_chars(digits.data(), digits.data() + 16, hash.high, 16);
  std::from_chars(digits.data() + 16, digits.data() + 32, hash.low, 16);
  return hash;
}

Hash128 checksum(std::span<const std::byte> bytes) { return from_xxh(XXH3_128bits(bytes.data(), bytes.size())); }

struct RunningChecksum::State {
  XXH3_state_t xxh;
};
RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
RunningChecksum::~RunningChecksum() = default;
void RunningChecksum::update(std::string_view bytes) { XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size()); }
Hash128 RunningChecksum::value() const { return from_xxh(XXH3_128bits_digest(&state_->xxh)); }

Hash128 FileChecksums::digest() const {
  std::vector<std::byte> words;
  words.reserve(8 + 16 * blocks.size());
  const auto put = [&words](std::uint64_t word) {  // little-endian on every machine
    for (int shift = 0; shift < 64; shift += 8) words.push_back(static_cast<std::byte>(word >> shift & 0xFF));
  };
  put(bytes);
  for (const Hash128& block : blocks) {
    put(block.high);
    put(block.low);
  }
  return checksum(words);
}

struct BlockChecksums::State {
  XXH3_state_t xxh;
};

BlockChecksums::BlockChecksums() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
BlockChecksums::~BlockChecksums() = default;

void BlockChecksums::update(std::span<const std::byte> bytes) {
  done_.bytes += bytes.size();
  while (!bytes.empty()) {
    if (filled_ == 0 && bytes.size() >= kChecksumBlockBytes) {  // a whole block in one piece needs no state
      done_.blocks.push_back(checksum(bytes.first(kChecksumBlockBytes)));
      bytes = bytes.subspan(kChecksumBlockBytes);
      continue;
    }
    const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), kChecksumBlockBytes - filled_));
    XXH3_128bits_update(&state_->xxh, piece.data(), piece.size());
    filled_ += piece.size();
    bytes = bytes.subspan(piece.size());
    if (filled_ == kChecksumBlockBytes) end_block();
  }
}

void BlockChecksums::end_block() {
  done_.blocks.push_back(from_xxh(XXH3_128bits_digest(&state_->xxh)));
  XXH3_128bits_reset(&state_->xxh);
  filled_ = 0;
}

FileChecksums BlockChecksums::finish() {
  if (filled_ > 0) end_block();
  return std::move(done_);
}

}  // namespace megalith::io
