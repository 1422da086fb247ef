#pragma once
#include <cstdint>
#include <string>
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
/// Communication calls have points of their own, as they run beside the ops.
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

  // For comm.
  /// What a communication call is.
  struct Call {
    std::string_view name;   ///< must live as long as the tracer
    std::string_view group;  ///< copied
    Index bytes = 0;
  };
  /// A call's data is ready at the present point of `stream`. `entry`: of the rank's call log.
  void posted(std::uint64_t entry, const Call& call, Stream stream);
  /// It is done at the present point of `stream`, which may be the transport's own. Ignored for calls from before.
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
  /// All communication calls that were posted and done, in the order of their posts: from when the data was ready
  /// until the call was done; on a CPU a message is done when its wait has returned.
  std::vector<CallSpan> calls() const;

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
