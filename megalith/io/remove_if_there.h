#pragma once
#include "megalith/base/error.h"
#include "megalith/io/fs.h"

namespace megalith::io {

/// For what a failure leaves behind. An error is dropped: the failure that came before is the one to report.
inline void remove_if_there(Fs& fs, const Path& file) noexcept {
  try {
    if (fs.exists(file)) fs.unlink(file);
  } catch (const std::exception&) {
  }
}

}  // namespace megalith::io
