#pragma once
#include <string>

#include "megalith/base/error.h"

#include "tests/train/small_run.h"

// Steps that ranks end together as they disagree about a collective.
namespace megalith::support {

/// Why the ranks end in a step, which must throw CollectiveError and change no parameter.
inline std::string refusal_of_step(train::Engine& engine, const model::BatchSource& source,
                                   const train::Progress& progress) {
  Gathered before, after;
  put_params(before, engine.stage(), false);
  std::string refusal;
  try {
    engine.step(source, progress, train::Stop::no);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const CollectiveError& error) {
    refusal = error.what();
  }
  put_params(after, engine.stage(), false);
  EXPECT_EQ(before.tensors(), after.tensors());
  return refusal;
}

/// The rank believes to have sent something more, which no transport notices, as nobody awaits it.
inline void miscount(comm::Channel& channel) { channel.book({.op = comm::Op::send, .lane = 77}, 0); }

}  // namespace megalith::support
