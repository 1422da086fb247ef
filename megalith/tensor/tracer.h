#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "megalith/tensor/device.h"

namespace megalith {

/// What the time of a step is spent on. `communication`: ops that communicate or wait for it, wherever they stand.
enum class StepPhase : std::uint8_t { forward, backward, communication, optimizer, other };
inline constexpr int kNumStepPhases = 5;
std::string_view name_of(StepPhase phase);

/// When each op ran, on the device's own clock: two points of the stream around every op (on a GPU, events, and a range
/// for its profilers; on the CPU, the clock). Costs about 2 us of the host an op; ops may overlap less than without.
class Tracer {
 public:
  explicit Tracer(Device device);

  // For Exec.
  /// Waits for all work of the stream: times count from here.
  void start(Stream stream);
  /// `name` must live as long as the tracer.
  void begin(const char* name, StepPhase phase, Stream stream);
  void end(Stream stream);
  void stop(Stream stream);

  struct Span {
    const char* name = "";
    StepPhase phase = StepPhase::other;
    double start_s = 0, duration_s = 0;  ///< since the start
  };
  /// All ops so far, in the order of their calls. Waits for them.
  std::vector<Span> spans() const;

  /// From the start to the stop, on the stream.
  double seconds() const;
  /// The start by monotonic_s(): on a GPU to a few us, what it takes to launch an event and to hear of it.
  double start_clock_s() const { return start_clock_s_; }

 private:
  struct Mark {
    const char* name = "";
    StepPhase phase = StepPhase::other;
    TimePoint begin, end;
  };
  Device device_;
  TimePoint start_, stop_;
  double start_clock_s_ = 0;
  std::vector<Mark> marks_;
};

}  // namespace megalith
