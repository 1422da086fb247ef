#include "megalith/tensor/capture_guard.h"

namespace megalith {
namespace {

// What a thread calls beside its Exec (tensor/device.h) has no other way to know.
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
