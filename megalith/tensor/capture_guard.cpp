#include "megalith/tensor/capture_guard.h"

namespace megalith {
namespace {

// Calls of a thread outside its Exec (tensor/device.h) have no other access to the guard.
thread_local const CaptureGuard* active_guard = nullptr;

}  // namespace

const CaptureGuard* CaptureGuard::active(Device device) {
  return active_guard != nullptr && active_guard->device_ == device ? active_guard : nullptr;
}

void CaptureGuard::enter() { active_guard = this; }

void CaptureGuard::leave() noexcept {
  if (active_guard == this) active_guard = nullptr;
}

}  // namespace megalith
