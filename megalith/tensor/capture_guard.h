#pragma once
#include <string_view>

#include "megalith/tensor/device.h"

namespace megalith {

/// Refuses calls that a thread may not make outside its ops while it captures a device's work as a graph
/// (runtime/graph.h). These are waiting for the device, taking memory, and, outside of ops, copying and filling. A
/// thread captures into one graph at a time.
class CaptureGuard {
 public:
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

  /// The calling thread's capture of that device's work, or null. (While a GPU's work is captured the hosts may still
  /// exchange control data.)
  static const CaptureGuard* active(Device device);
  /// Throws InternalError with the call site.
  [[noreturn]] virtual void refuse(std::string_view what, std::string_view why) const = 0;
  /// Whether an op submits its work: its requests to the device become part of the graph.
  virtual bool in_op() const = 0;
  /// From here on it is the calling thread's.
  void enter();
  void leave() noexcept;

 protected:
  CaptureGuard() = default;
  ~CaptureGuard() { leave(); }

  Device device_ = Device::cpu;
};

}  // namespace megalith
