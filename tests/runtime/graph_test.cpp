#include "megalith/runtime/graph.h"

#include <gtest/gtest.h>

#include "megalith/base/build.h"
#include "megalith/base/error.h"
#include "megalith/runtime/exec.h"

namespace megalith {
namespace {

/// Memory of a run, with room for a few numbers.
class GraphTest : public ::testing::Test {
 protected:
  Tensor number(Index place) const { return memory_.view({1}, DType::f64, place * 8); }
  double& value(Index place) const { return number(place).data<double>()[0]; }
  std::vector<std::span<const std::byte>> planned() const {
    return {{memory_.data(), static_cast<std::size_t>(memory_.bytes())}};
  }
  /// to = from + by
  void add(Index from, double by, Index to) {
    const Tensor in = number(from), out = number(to);
    ex_.run({.name = "add", .reads = {in}, .writes = {out}},
            [=](Exec&, Stream) { out.data<double>()[0] = in.data<double>()[0] + by; });
  }
  template <class Ops>
  Graph captured(Ops&& ops) {
    Capture capture("training", planned());
    ex_.set_call_site({.microbatch = 1, .layer = 3});
    Graph graph = ex_.captured(capture, ops);
    graph.prepare(ex_);
    return graph;
  }
  template <class Ops>
  std::string refusal(Ops&& ops) {
    try {
      captured(ops);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }

  Buffer memory_{1024};
  Exec ex_;
};

TEST_F(GraphTest, ALaunchRepeatsTheOpsAndNothingOfTheHost) {
  int count = 0;
  value(0) = 2;
  const Graph graph = captured([&] {
    const Tensor a = number(0), sum = number(1);
    ex_.run({.name = "accumulate", .reads = {a, sum}, .writes = {sum}},
            [=](Exec&, Stream) { sum.data<double>()[0] += a.data<double>()[0]; });
    ++count;
  });
  EXPECT_EQ(value(1), 0) << "a capture executes nothing";
  EXPECT_EQ(graph.stats().ops, 1);
  for (int i = 0; i < 5; ++i) graph.launch(ex_);
  EXPECT_EQ(value(1), 10);
  EXPECT_EQ(count, 1);
}

TEST_F(GraphTest, OpsOutsideACaptureRunAtOnce) {
  captured([&] { add(0, 1, 0); });
  add(0, 1, 1);
  EXPECT_EQ(value(1), 1);
  EXPECT_EQ(value(0), 0);
}

TEST_F(GraphTest, WhatAGraphCannotRepeatIsRefusedWithThePlaceAndTheOp) {
  EXPECT_EQ(refusal([&] { ex_.synchronize(); }),
            "[capture] training, microbatch 1, layer 3: Exec::synchronize: inside a graph the host cannot wait for the "
            "device");
  EXPECT_EQ(
      refusal([&] { ex_.tensor({2}, DType::f64); }),
      "[capture] training, microbatch 1, layer 3: Exec::tensor: a graph's tensors come from a plan, not from the heap");
  double host = 0;
  EXPECT_EQ(
      refusal([&] { ex_.copy(&host, number(0).raw(), 8); }),
      "[capture] training, microbatch 1, layer 3: Exec::copy: copies from and to the host stay outside of graphs");
  EXPECT_EQ(refusal([&] {
              const Tensor foreign(&host, {1}, DType::f64);
              ex_.run({.name = "scale", .reads = {foreign}, .writes = {foreign}}, [](Exec&, Stream) {});
            }),
            "[capture] training, microbatch 1, layer 3: scale: a tensor of shape [1] lies outside the run's planned "
            "memory: its "
            "address may be another at the launch");
  const Graph graph = captured([&] { add(0, 1, 0); });
  EXPECT_EQ(refusal([&] { graph.launch(ex_); }),
            "[capture] training, microbatch 1, layer 3: Graph::launch: graphs do not nest");
  Tracer tracer(Device::cpu);
  ex_.set_tracer(&tracer);
  EXPECT_EQ(
      refusal([&] { add(0, 1, 0); }),
      "[capture] training, microbatch 1, layer 3: Exec::set_tracer: ops inside a graph cannot be timed one by one");
}

/// "[capture] training, microbatch 1, layer 3: " and the rest of a refusal.
std::string at_place(const std::string& rest) { return "[capture] training, microbatch 1, layer 3: " + rest; }

TEST_F(GraphTest, WaitingAndTimingBesideAnExecNameThePlace) {
  const std::string no_wait = ": inside a graph the host cannot wait for the device";
  const std::string no_time = ": what runs inside a graph cannot be timed";
  Event event(Device::cpu);
  event.record(ex_.stream());
  TimePoint earlier(Device::cpu), later(Device::cpu);
  earlier.record(ex_.stream());
  EXPECT_EQ(refusal([&] { event.wait(); }), at_place("Event::wait" + no_wait));
  EXPECT_EQ(refusal([&] { static_cast<void>(event.passed()); }),
            at_place("Event::passed: inside a graph the host cannot ask how far the device has come"));
  EXPECT_TRUE(event.passed());
  EXPECT_EQ(refusal([&] { device::synchronize(Device::cpu, ex_.stream()); }),
            at_place("device::synchronize" + no_wait));
  EXPECT_EQ(refusal([&] { later.record(ex_.stream()); }), at_place("TimePoint::record" + no_time));
  EXPECT_EQ(refusal([&] { static_cast<void>(later.seconds_since(earlier)); }),
            at_place("TimePoint::seconds_since" + no_wait));
  EXPECT_EQ(refusal([&] { event.record(ex_.stream()), event.hold(ex_.stream()); }), "") << "streams may meet";
}

TEST_F(GraphTest, TakingMemoryNamesThePlace) {
  const std::string rule = ": a graph's memory is taken before the capture";
  MemoryLedger ledger(Device::cpu);
  EXPECT_EQ(refusal([] { Buffer buffer(8); }), at_place("device::allocate" + rule));
  EXPECT_EQ(refusal([&] { ledger.take("late", 8); }), at_place("device::allocate" + rule));
  EXPECT_EQ(refusal([] { Buffer buffer(8, Device::cpu, Side::host); }), at_place("device::allocate_host" + rule));
  EXPECT_EQ(refusal([] { Buffer nothing(0); }), "");
}

TEST_F(GraphTest, WritesThatAreNoOpsNameThePlace) {
  const std::string rule = ": memory is written by ops only, through Exec::run";
  EXPECT_EQ(refusal([&] { device::copy(Device::cpu, number(1).raw(), number(0).raw(), 8, ex_.stream()); }),
            at_place("device::copy" + rule));
  EXPECT_EQ(refusal([&] { device::fill_bytes(Device::cpu, number(0).raw(), 0, 8, ex_.stream()); }),
            at_place("device::fill_bytes" + rule));
  // Within an op they are its work, at every launch.
  const Tensor from = number(0), to = number(1);
  const Graph graph = captured([&] {
    ex_.run({.name = "copy", .reads = {from}, .writes = {to}},
            [=](Exec& ex, Stream stream) { device::copy(ex.device(), to.raw(), from.raw(), from.bytes(), stream); });
  });
  value(0) = 5;
  graph.launch(ex_);
  EXPECT_EQ(value(1), 5);
}

TEST_F(GraphTest, OpsOfAnotherExecNameThePlace) {
  if constexpr (!build::is_debug) GTEST_SKIP() << "debug builds look";
  Exec host;
  const Tensor x = number(0);
  const auto scale = [&] { host.run({.name = "scale", .reads = {x}, .writes = {x}}, [](Exec&, Stream) {}); };
  EXPECT_EQ(refusal(scale), at_place("scale: an op of another Exec is no part of the graph"));
  scale();
}

TEST_F(GraphTest, AnotherShapeOrOrderThanPlannedNamesThePlace) {
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  const auto ops = [&](Exec& ex, Index size, const char* name, int tensors) {
    for (int i = 0; i < tensors; ++i) static_cast<void>(ex.tensor({size}, DType::f64));
    ex.run({.name = name, .reads = {}, .writes = {}}, [](Exec&, Stream) {});
  };
  ops(recorder, 2, "scale", 2);
  const MemoryPlan plan = make_plan(recording);
  const auto error_of = [&](Index size, const char* name, int tensors) {
    return refusal([&] {
      ex_.begin(plan.phases[0], memory_.data(), memory_.data() + 512);
      ops(ex_, size, name, tensors);
      ex_.end();
    });
  };
  EXPECT_EQ(error_of(2, "scale", 2), "");
  EXPECT_EQ(error_of(3, "scale", 2),
            at_place("Exec::tensor: tensor 0 of shape [3] differs from the recorded one: a phase "
                     "must run as it was recorded"));
  EXPECT_EQ(error_of(2, "scale", 1),
            at_place("Exec::end: the phase asked for 1 tensors, its plan has 2: a phase must run "
                     "as it was recorded"));
  if constexpr (build::is_debug) {
    EXPECT_EQ(error_of(2, "shift", 2),
              at_place("Exec::run: op 0 is shift, recorded was scale: a phase must run as it was recorded"));
  }
  // The same in steps that no graph runs.
  ex_.begin(plan.phases[0], memory_.data(), memory_.data() + 512);
  try {
    ops(ex_, 3, "scale", 2);
    FAIL() << "another shape";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(),
                 "[Exec::tensor] tensor 0 of shape [3] differs from the recorded one, microbatch 1, layer 3: a phase "
                 "must run as it was recorded");
  }
}

TEST_F(GraphTest, WhateverElseEndsACaptureNamesThePlace) {
  const auto error_of = [&](auto&& ops) -> std::string {
    Capture capture("training", planned());
    try {
      ex_.set_call_site({});
      ex_.captured(capture, ops);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  // The place is where the step has come to, not where the capture began.
  EXPECT_EQ(error_of([&] {
              ex_.set_call_site({.chunk = 1, .microbatch = 2});
              ex_.set_layer(4);
              throw ShapeError("[matmul.a] shape = [2]: must be [3]");
            }),
            "[capture] training, chunk 1, microbatch 2, layer 4: [matmul.a] shape = [2]: must be [3]");
  EXPECT_EQ(error_of([&] { ex_.synchronize(); }),
            "[capture] training: Exec::synchronize: inside a graph the host cannot wait for the device")
      << "once";
  // After an error nothing is being captured.
  const Buffer buffer(8);
  add(0, 1, 1);
  EXPECT_EQ(value(1), 1);
}

TEST_F(GraphTest, WhatCannotBeMadeOfACaptureNamesItAndKeepsItsClass) {
  class NoMemory final : public Graph::Body {
    void prepare(Exec&) override { throw IoError("[memory] the GPU has no more"); }
    void launch(Exec&) const override {}
  };
  Graph graph(std::make_shared<NoMemory>(), nullptr, {}, "training, chunk 0, microbatch 1, layer 3");
  try {
    graph.prepare(ex_);
    FAIL() << "there is no memory";
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(), "[capture] training, chunk 0, microbatch 1, layer 3: [memory] the GPU has no more");
  }
  EXPECT_EQ(captured([&] { add(0, 1, 1); }).what(), "training, microbatch 1, layer 3");
}

TEST_F(GraphTest, PoisonIsPartOfAGraph) {
  Recording recording;
  Exec recorder(Device::cpu, recording);
  recording.begin_phase();
  const auto ops = [&](Exec& ex) {
    const Tensor made = ex.tensor({1}, DType::f64), out = number(0);
    ex.run({.name = "read", .reads = {made}, .writes = {out}},
           [=](Exec&, Stream) { out.data<double>()[0] = made.data<double>()[0]; });
  };
  ops(recorder);
  const MemoryPlan plan = make_plan(recording);
  ex_.poison_new_tensors();
  const Graph graph = captured([&] {
    ex_.begin(plan.phases[0], nullptr, memory_.data() + 512);
    ops(ex_);
    ex_.end();
  });
  memory_.view({1}, DType::f64, 512).data<double>()[0] = 7;
  graph.launch(ex_);
  EXPECT_TRUE(value(0) != value(0)) << "a read before a write gives NaN in every launch";
}

class GraphComparisonTest : public GraphTest {
 protected:
  /// What a comparison of `now` with a graph of `then` reports.
  template <class Then, class Now>
  std::string compared(Then&& then, Now&& now) {
    const Graph graph = captured(then);
    try {
      ex_.run_beside(graph, "training", now);
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }
};

TEST_F(GraphComparisonTest, EqualStepsPassAndRunOnce) {
  const auto ops = [&] { add(0, 1, 0), add(0, 2, 1); };
  EXPECT_EQ(compared(ops, ops), "");
  EXPECT_EQ(value(0), 1);
  EXPECT_EQ(value(1), 3);
}

TEST_F(GraphComparisonTest, AValuePassedByValueIsFound) {
  EXPECT_EQ(compared([&] { add(0, 1e-3, 1); }, [&] { add(0, 2e-3, 1); }),
            "[graph] training, microbatch 1, layer 3, op 1 (add): gives another result than when captured: what "
            "changes from step to step must "
            "come from memory, not by value");
}

TEST_F(GraphComparisonTest, APathThatFollowsDataIsFound) {
  value(5) = 1;
  const auto ops = [&] {
    if (value(5) > 0) add(0, 1, 0);
    add(0, 1, 1);
  };
  const auto later = [&] {
    value(5) = -1;
    ops();
  };
  EXPECT_EQ(compared(ops, later),
            "[graph] training, microbatch 1, layer 3, op 1 (add): a tensor of shape [1] lies at another address than "
            "when captured");
  value(5) = 1;
  EXPECT_EQ(compared([&] { add(0, 1, 1); }, ops),
            "[graph] training, microbatch 1, layer 3, op 1 (add): a tensor of shape [1] lies at another address than "
            "when captured");
  EXPECT_EQ(compared([&] { add(0, 1, 1), add(0, 1, 2); }, [&] { add(0, 1, 1); }),
            "[graph] training, microbatch 1, layer 3, op 2 (add): the graph has it, the host no longer submits it: a "
            "graph keeps the path of its "
            "capture");
  EXPECT_EQ(compared([&] { add(0, 1, 1); }, [&] { add(0, 1, 1), add(0, 1, 2); }),
            "[graph] training, microbatch 1, layer 3, op 2 (add): the graph has nothing there: a graph keeps the path "
            "of its capture, so what the "
            "host runs may not follow data");
}

TEST_F(GraphComparisonTest, AnotherNumberOfTensorsIsFound) {
  const auto touch = [&](std::initializer_list<Tensor> reads) {
    ex_.run({.name = "touch", .reads = reads, .writes = {}}, [](Exec&, Stream) {});
  };
  EXPECT_EQ(compared([&] { touch({number(0)}); },
                     [&] {
                       touch({number(0), number(1)});
                     }),
            "[graph] training, microbatch 1, layer 3, op 1 (touch): it has 2 tensors, captured were 1");
}

TEST_F(GraphComparisonTest, AnotherShapeIsFound) {
  const auto clear = [&](Index count) {
    const Tensor x = memory_.view({count}, DType::f64);
    ex_.run({.name = "clear", .reads = {}, .writes = {x}},
            [=](Exec&, Stream) { std::ranges::fill(x.span<double>(), 0.0); });
  };
  EXPECT_EQ(compared([&] { clear(4); }, [&] { clear(8); }),
            "[graph] training, microbatch 1, layer 3, op 1 (clear): a tensor of shape [8], captured was [4]");
}

}  // namespace
}  // namespace megalith
