#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace megalith::corpus {

enum class Compression { none, gzip, zstd };
/// "none", "gz", "zst"; throws ConfigError for another.
Compression compression_named(std::string_view name);
/// The end of the names of such files: "", ".gz", ".zst".
std::string_view extension_of(Compression compression);

/// Compresses a stream: one gzip member without a time, or one zstd frame with a checksum. The bytes do not depend on
/// how the stream was cut into calls.
class Packer {
 public:
  virtual ~Packer() = default;
  /// Appends the bytes that are ready to `out`.
  virtual void add(std::string_view bytes, std::string& out) = 0;
  /// Appends the rest. Call once, at the end.
  virtual void finish(std::string& out) = 0;
};
std::unique_ptr<Packer> make_packer(Compression compression);

}  // namespace megalith::corpus
