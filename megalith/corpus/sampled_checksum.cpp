#include "megalith/corpus/sampled_checksum.h"

#include <string>

namespace megalith::corpus {

io::Hash128 sampled_checksum(io::Fs& fs, const io::Path& file) {
  const io::MappedFile mapped = fs.map(file);
  const auto bytes = mapped.bytes();
  if (bytes.size() <= kSampledBytes) return io::checksum(bytes);
  constexpr std::uint64_t kStretches = kSampledBytes / kSampledStretch;
  std::string sample;
  for (std::uint64_t i = 0; i < kStretches; ++i) {
    const std::uint64_t first = (bytes.size() - kSampledStretch) / (kStretches - 1) * i;
    sample += mapped.text().substr(i + 1 < kStretches ? first : bytes.size() - kSampledStretch, kSampledStretch);
  }
  return io::checksum(std::as_bytes(std::span(sample)));
}

}  // namespace megalith::corpus
