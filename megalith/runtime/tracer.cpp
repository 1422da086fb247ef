#include "megalith/runtime/tracer.h"

#include <algorithm>

#include "megalith/base/clock.h"
#include "megalith/tensor/cuda/device.h"
#include "megalith/tensor/has_cuda.h"

namespace megalith {

std::string_view name_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::forward:
      return "forward";
    case StepPhase::backward:
      return "backward";
    case StepPhase::communication:
      return "communication";
    case StepPhase::optimizer:
      return "optimizer";
    case StepPhase::other:
      return "other";
  }
  return "?";
}

Tracer::Tracer(Device device) : device_(device), start_(device), stop_(device) {}

void Tracer::start(Stream stream) {
  device::synchronize(device_, stream);
  const double before_s = monotonic_s();
  start_.record(stream);
  device::synchronize(device_, stream);
  start_clock_s_ = (before_s + monotonic_s()) / 2;
}

void Tracer::begin(const char* name, StepPhase phase, Stream stream) {
  if constexpr (build::has_cuda) {
    if (device_ == Device::cuda) cuda::push_range(name);
  }
  Mark& mark = marks_.emplace_back(Mark{name, phase, TimePoint(device_), TimePoint(device_)});
  mark.begin.record(stream);
}

void Tracer::end(Stream stream) {
  marks_.back().end.record(stream);
  if constexpr (build::has_cuda) {
    if (device_ == Device::cuda) cuda::pop_range();
  }
}

void Tracer::stop(Stream stream) { stop_.record(stream); }

void Tracer::posted(std::uint64_t entry, const Call& call, Stream stream) {
  CallMark& mark = calls_.emplace_back(
      CallMark{entry, call.name, std::string(call.group), call.bytes, TimePoint(device_), TimePoint(device_)});
  mark.posted.record(stream);
}

void Tracer::done(std::uint64_t entry, Stream stream) {
  const auto found = std::find_if(calls_.rbegin(), calls_.rend(), [&](const CallMark& m) { return m.entry == entry; });
  if (found == calls_.rend()) return;
  found->done.record(stream);
  found->is_done = true;
}

std::vector<Tracer::Span> Tracer::spans() const {
  std::vector<Span> spans;
  for (const Mark& mark : marks_) {
    spans.push_back({mark.name, mark.phase, mark.begin.seconds_since(start_), mark.end.seconds_since(mark.begin)});
  }
  return spans;
}

std::vector<Tracer::CallSpan> Tracer::calls() const {
  std::vector<CallSpan> calls;
  for (const CallMark& mark : calls_) {
    if (!mark.is_done) continue;
    calls.push_back(
        {mark.name, mark.group, mark.bytes, mark.posted.seconds_since(start_), mark.done.seconds_since(mark.posted)});
  }
  return calls;
}

double Tracer::seconds() const { return stop_.seconds_since(start_); }

}  // namespace megalith
