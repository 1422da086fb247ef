#include "megalith/runtime/tracer.h"

#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "megalith/base/clock.h"
#include "megalith/runtime/exec.h"

namespace megalith {
namespace {

void pass(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

class TracerTest : public ::testing::Test {
 protected:
  void run(const char* name, int milliseconds, OpKind kind = OpKind::local) {
    ex_.run({.name = name, .reads = {}, .writes = {}, .kind = kind}, [=](Exec&, Stream) { pass(milliseconds); });
  }

  Exec ex_;
  Tracer tracer_{Device::cpu};
};

TEST_F(TracerTest, OpsHaveThePhaseOfTheirPlaceUnlessTheyCommunicate) {
  ex_.set_call_site({.phase = StepPhase::forward});
  run("before", 0);
  ex_.set_tracer(&tracer_);
  run("a", 0);
  ex_.set_layer(3);
  run("b", 0, OpKind::communication);
  ex_.set_call_site({.phase = StepPhase::backward});
  run("c", 0);
  ex_.set_call_site({});
  run("d", 0);
  ex_.set_tracer(nullptr);
  run("after", 0);
  const std::pair<const char*, StepPhase> wanted[] = {
      {"a", StepPhase::forward}, {"b", StepPhase::communication}, {"c", StepPhase::backward}, {"d", StepPhase::other}};
  const std::vector<Tracer::Span> spans = tracer_.spans();
  ASSERT_EQ(spans.size(), std::size(wanted));
  for (std::size_t i = 0; i < spans.size(); ++i) {
    EXPECT_STREQ(spans[i].name, wanted[i].first);
    EXPECT_EQ(spans[i].phase, wanted[i].second) << spans[i].name;
  }
}

TEST_F(TracerTest, TimesCountFromTheStartToTheStop) {
  const double before_s = monotonic_s();
  ex_.set_tracer(&tracer_);
  const double started_s = monotonic_s();
  pass(4);
  run("op", 2);
  pass(4);
  ex_.set_tracer(nullptr);
  EXPECT_GE(tracer_.start_clock_s(), before_s);
  EXPECT_LE(tracer_.start_clock_s(), started_s);
  const Tracer::Span op = tracer_.spans().at(0);
  EXPECT_GE(op.start_s, 0.004);  // not 0, though it is the first
  EXPECT_GE(op.duration_s, 0.002);
  EXPECT_GE(tracer_.seconds(), op.start_s + op.duration_s + 0.004);
  EXPECT_LE(tracer_.seconds(), monotonic_s() - before_s);
}

TEST_F(TracerTest, CallsEndInAnyOrderAndThoseUnderWayAreLeftOut) {
  const Stream stream = ex_.stream();
  ex_.set_tracer(&tracer_);
  tracer_.done(6, stream);  // posted before the trace
  tracer_.posted(7, {"send", "pp", 100}, stream);
  pass(2);
  tracer_.posted(8, {"recv", "pp", 200}, stream);
  tracer_.posted(9, {"recv", "pp", 300}, stream);
  tracer_.done(8, stream);
  pass(2);
  tracer_.done(7, stream);
  const std::vector<Tracer::CallSpan> calls = tracer_.calls();
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].name, "send");
  EXPECT_EQ(calls[0].group, "pp");
  EXPECT_EQ(calls[0].bytes, 100);
  EXPECT_GE(calls[0].duration_s, 0.004);
  EXPECT_EQ(calls[1].bytes, 200);
  EXPECT_GE(calls[1].start_s, calls[0].start_s + 0.002);
  EXPECT_LE(calls[1].start_s + calls[1].duration_s, calls[0].start_s + calls[0].duration_s - 0.002);
}

}  // namespace
}  // namespace megalith
