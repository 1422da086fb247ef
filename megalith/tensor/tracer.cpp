#include "megalith/tensor/tracer.h"

#include "megalith/base/build.h"
#include "megalith/tensor/cuda/device.h"

namespace megalith {

Tracer::Tracer(Device device) : device_(device) {}

void Tracer::begin(const char* name, Stream stream) {
  if constexpr (build::has_cuda) {
    if (device_ == Device::cuda) cuda::push_range(name);
  }
  Mark& mark = marks_.emplace_back(Mark{name, TimePoint(device_), TimePoint(device_)});
  mark.begin.record(stream);
}

void Tracer::end(Stream stream) {
  marks_.back().end.record(stream);
  if constexpr (build::has_cuda) {
    if (device_ == Device::cuda) cuda::pop_range();
  }
}

std::vector<Tracer::Span> Tracer::spans() const {
  std::vector<Span> spans;
  for (const Mark& mark : marks_) {
    spans.push_back({mark.name, mark.begin.seconds_since(marks_.front().begin), mark.end.seconds_since(mark.begin)});
  }
  return spans;
}

}  // namespace megalith
