#pragma once
#include <optional>

#include "megalith/io/fs.h"
#include "megalith/ops/gemm_table.h"

namespace megalith::train {

/// The algorithms that earlier jobs of this user timed, one file for every kind of GPU and version of the library.
/// Never a reason for a job to fail: what cannot be read is ignored, what cannot be written is not kept.
class GemmCache {
 public:
  /// `root` may be empty: then there is no cache.
  GemmCache(io::Fs& fs, const io::Path& root, const ops::GemmPlatform& platform);
  const io::Path& file() const { return file_; }  ///< ROOT/gemm/NVIDIA-H200-cuBLASLt-13.1.0.json

  /// Nothing when there is none. Warns of a file that is there and cannot be used.
  std::optional<ops::GemmTable> read() const;
  /// Adds the products of `timed` to what is there by now, or puts them in place of those; published whole or not at
  /// all. One job at a time: one that comes meanwhile leaves its own out.
  void add(const ops::GemmTable& timed) const;

 private:
  /// As the file stands. Throws InputError, IoError.
  ops::GemmTable load() const;

  io::Fs& fs_;
  io::Path folder_, file_;
  ops::GemmPlatform platform_;
};

}  // namespace megalith::train
