#pragma once
#include <string>
#include <vector>

#include "megalith/tensor/device.h"

namespace megalith {

/// When each op ran, on the device's own clock: two points of the stream around every op (on a GPU, events, and a range
/// for its profilers; on the CPU, the clock). Costs about 2 us of the host an op; ops may overlap less than without.
class Tracer {
 public:
  explicit Tracer(Device device);

  /// `name` must live as long as the tracer.
  void begin(const char* name, Stream stream);
  void end(Stream stream);

  struct Span {
    const char* name = "";
    double start_s = 0, duration_s = 0;  ///< since the first op
  };
  /// All ops so far, in the order of their calls. Waits for them.
  std::vector<Span> spans() const;

 private:
  struct Mark {
    const char* name = "";
    TimePoint begin, end;
  };
  Device device_;
  std::vector<Mark> marks_;
};

}  // namespace megalith
