#pragma once
#include <optional>

#include "megalith/io/fs.h"
#include "megalith/ops/gemm_table.h"

namespace megalith::train {

/// The algorithms that earlier jobs of this user timed, one file per kind of GPU and version of the library. Never
/// makes a job fail: a file that cannot be read is ignored, and one that cannot be written is not kept.
class GemmCache {
 public:
  /// `root` may be empty: then there is no cache.
  GemmCache(io::Fs& fs, const io::Path& root, const ops::GemmPlatform& platform);
  const io::Path& file() const { return file_; }  ///< ROOT/gemm/NVIDIA-H200-cuBLASLt-13.1.0.json

  /// Nothing if there is no file. Warns of a file that cannot be used.
  std::optional<ops::GemmTable> read() const;
  /// Adds the GEMMs of `timed` to the present file, or replaces them there. The file is published as a whole or not at
  /// all. One job at a time: if another one is adding, this one adds nothing.
  void add(const ops::GemmTable& timed) const;

 private:
  /// The present file. Throws InputError, IoError.
  ops::GemmTable load() const;

  io::Fs& fs_;
  io::Path folder_, file_;
  ops::GemmPlatform platform_;
};

}  // namespace megalith::train
