#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/device.h"

namespace megalith {

/// The purpose of the time in a step. `communication`: all ops that communicate or wait for it.
enum class StepPhase : std::uint8_t { forward, backward, communication, optimizer, other };
inline constexpr int kNumStepPhases = 5;
std::string_view name_of(StepPhase phase);

/// The times of each op, on the device's own clock, from two points of the stream around every op. (On a GPU these are
/// events, and a range for profilers; on the CPU, the clock.) Costs the host about 2 us per op. Ops may overlap less
/// than without a tracer. Communication calls have their own points, because they run concurrently with the ops.
class Tracer {
 public:
  explicit Tracer(Device device);

  // For Exec.
  /// Waits for all work of the stream. Times count from here.
  void start(Stream stream);
  /// `name` must live as long as the tracer.
  void begin(const char* name, StepPhase phase, Stream stream);
  void end(Stream stream);
  void stop(Stream stream);

  // For comm.
  /// A communication call.
  struct Call {
    std::string_view name;   ///< must live as long as the tracer
    std::string_view group;  ///< copied
    Index bytes = 0;
  };
  /// The data of a call is ready at the present point of `stream`. `entry`: its number in the rank's call log.
  void posted(std::uint64_t entry, const Call& call, Stream stream);
  /// The call is done at the present point of `stream`, which may be the transport's own. Ignored for calls that were
  /// posted before the start.
  void done(std::uint64_t entry, Stream stream);

  struct Span {
    const char* name = "";
    StepPhase phase = StepPhase::other;
    double start_s = 0, duration_s = 0;  ///< since the start
  };
  /// All ops so far, in the order of their calls. Waits for them.
  std::vector<Span> spans() const;

  struct CallSpan {
    std::string_view name, group;
    Index bytes = 0;
    double start_s = 0, duration_s = 0;
  };
  /// All communication calls that were posted and done, in the order of their posts. A call lasts from the time when
  /// its data was ready until it was done. On a CPU a message is done when its wait has returned.
  std::vector<CallSpan> calls() const;

  /// From the start to the stop, on the stream.
  double seconds() const;
  /// The start by monotonic_s(). On a GPU it is exact to a few us: the time to launch an event and to be notified of
  /// it.
  double start_clock_s() const { return start_clock_s_; }

 private:
  struct Mark {
    const char* name = "";
    StepPhase phase = StepPhase::other;
    TimePoint begin, end;
  };
  struct CallMark {
    std::uint64_t entry = 0;
    std::string_view name;
    std::string group;
    Index bytes = 0;
    TimePoint posted, done;
    bool is_done = false;
  };
  Device device_;
  TimePoint start_, stop_;
  double start_clock_s_ = 0;
  std::vector<Mark> marks_;
  std::vector<CallMark> calls_;
};

}  // namespace megalith
