#pragma once
#include <cerrno>
#include <chrono>
#include <thread>

#include "megalith/io/fs.h"

namespace megalith::io {

/// Whether the reason may have passed a moment later: a network file system that answers late, a moment without free
/// descriptors.
constexpr bool may_pass(int error_number) {
  return error_number == EIO || error_number == ESTALE || error_number == EMFILE || error_number == ENFILE ||
         error_number == EAGAIN || error_number == ETIMEDOUT;
}

/// What f() gives, which only reads. A failure that may pass is met by further calls, over about a second; the last
/// one's is thrown.
template <class F>
auto retrying(F&& f) -> decltype(f()) {
  using std::chrono::milliseconds;
  for (const milliseconds wait : {milliseconds(20), milliseconds(200), milliseconds(800)}) {
    try {
      return f();
    } catch (const SystemError& error) {
      if (!may_pass(error.number())) throw;
    }
    std::this_thread::sleep_for(wait);
  }
  return f();
}

}  // namespace megalith::io
