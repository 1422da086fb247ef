#pragma once
#include "megalith/io/fs.h"

namespace megalith::io {

/// A file system that does what `inner` does, and tries its reads again where a failure may pass (retry.h): map, list,
/// exists, is_dir, is_link, file_size and free_bytes. Nothing that writes is tried again: what a failed write left is
/// not known.
std::shared_ptr<Fs> retrying_fs(std::shared_ptr<Fs> inner);

}  // namespace megalith::io
