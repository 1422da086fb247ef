#pragma once
#include <cstdint>

#include "megalith/comm/peer/kernels.h"

namespace megalith::comm {

/// Whether this machine's driver can write and wait for words in a stream's order; from CUDA 12 on every GPU can.
bool can_use_stream_words();
/// Whether what the stream is given is being captured into a graph.
bool is_capturing(Stream stream);

/// What a wait for a word does besides.
enum class Waits : std::uint8_t {
  plain,
  flushing,  ///< the GPU first takes in all that others have written to it before the word
};
/// Whether the GPU that the calling thread uses can.
bool can_flush();

/// Writes of words and waits for them in a stream's order. A write comes after all that the stream did before it, for
/// whoever sees it. Words are of any GPU within reach; waits of the own one. Outside of a capture the GPU does them
/// without a multiprocessor, in a graph a thread of a kernel does: nodes of the other kind made a step of 1.2B, TP 2
/// take 92 ms instead of 82 on H200s.
class StreamSignals {
 public:
  explicit StreamSignals(Waits waits = Waits::plain) : waits_(waits) {}
  void write(std::uint32_t* word, std::uint32_t value) { add({SignalStep::Kind::write, word, value}); }
  /// Until *word >= value.
  void wait_for(std::uint32_t* word, std::uint32_t value) { add({SignalStep::Kind::wait, word, value}); }
  /// In the order of the calls.
  void submit(Stream stream);

 private:
  void add(const SignalStep& step);

  Waits waits_;
  SignalSteps steps_;
};

}  // namespace megalith::comm
