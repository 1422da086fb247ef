#pragma once
#include <cstdint>

#include "megalith/comm/peer/kernels.h"

namespace megalith::comm {

/// Whether the driver of this machine can write words and wait for them in the order of a stream. From CUDA 12 on every
/// GPU can.
bool can_use_stream_words();
/// Whether the work of the stream is being captured into a graph.
bool is_capturing(Stream stream);

/// What a wait for a word does in addition.
enum class Waits : std::uint8_t {
  plain,
  flushing,  ///< the GPU first receives all data that others have written to it before the word
};
/// Whether the GPU of the calling thread can flush.
bool can_flush();

/// Stream signals and stream waits: writes of words and waits for words in the order of a stream. A reader that sees
/// the write also sees all earlier work of the stream. Words may be written on any accessible GPU, and awaited on the
/// own GPU. Outside of a capture the GPU executes them without an SM. In a graph a kernel of one thread does. With
/// nodes of the other kind a step of 1.2B, TP 2 on H200s took 92 ms instead of 82.
class StreamSignals {
 public:
  explicit StreamSignals(Waits waits = Waits::plain) : waits_(waits) {}
  void write(std::uint32_t* word, std::uint32_t value) { add({SignalStep::Kind::write, word, value}); }
  /// Waits until *word >= value.
  void wait_for(std::uint32_t* word, std::uint32_t value) { add({SignalStep::Kind::wait, word, value}); }
  /// Submits the steps in the order of the calls.
  void submit(Stream stream);

 private:
  void add(const SignalStep& step);

  Waits waits_;
  SignalSteps steps_;
};

}  // namespace megalith::comm
