#pragma once
#include <string_view>

#include "megalith/tensor/device.h"

namespace megalith {

/// Refuses what a thread may not do beside its ops while it captures a device's work as a graph (runtime/graph.h):
/// waiting for the device, taking memory, and, outside of ops, copying and filling. A thread captures into one graph at
/// a time.
class CaptureGuard {
 public:
  CaptureGuard(const CaptureGuard&) = delete;
  CaptureGuard& operator=(const CaptureGuard&) = delete;

  /// What the calling thread captures of that device's work; null where it captures nothing. (While a GPU's work is
  /// captured the hosts may still exchange what they must know.)
  static const CaptureGuard* active(Device device);
  /// Throws InternalError, which names the place in the step.
  [[noreturn]] virtual void refuse(std::string_view what, std::string_view why) const = 0;
  /// Whether an op submits its work: what it asks of the device becomes part of the graph.
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
