#include "megalith/train/trace_file.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "megalith/comm/threads/thread_world.h"

#include "tests/io/temp_dir.h"

// What ranks on the CPU write of a trace whose ops are known.
namespace megalith {
namespace {

constexpr double kLate_us = 20e3;

void pass(double us) { std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(us)); }

/// Rank 1 begins its trace late, when rank 0 has computed. Both exchange messages and add up.
nlohmann::json events_of_two_ranks(const io::Path& file) {
  comm::run_ranks(2, [&](comm::World& world) {
    Exec ex;
    Tracer tracer(Device::cpu);
    const auto begin = [&] {
      ex.set_tracer(&tracer);
      ex.set_call_site({.phase = StepPhase::forward});
      ex.run({.name = "first", .reads = {}, .writes = {}}, [](Exec&, Stream) { pass(1000); });
    };
    if (world.rank() == 0) begin();
    Exec untraced;
    comm::barrier(untraced, world.all());
    if (world.rank() == 1) pass(kLate_us);
    if (world.rank() == 1) begin();
    std::vector<double> out(3, 1.0), in(3);
    const int peer = 1 - world.rank();
    comm::Pending received = comm::recv(ex, world.all(), Tensor(in.data(), {3}, DType::f64), peer);
    comm::Pending sent = comm::send(ex, world.all(), Tensor(out.data(), {3}, DType::f64), peer);
    received.wait(ex);
    sent.wait(ex);
    comm::all_reduce(ex, world.all(), Tensor(in.data(), {3}, DType::f64), comm::Reduce::sum).wait(ex);
    ex.set_tracer(nullptr);
    train::write_trace(world, *io::posix_fs(), file, tracer, {world.all()});
  });
  std::ifstream text(file);
  return nlohmann::json::parse(text).at("traceEvents");
}

struct Bar {
  int row = 0;
  double begin_us = 0, end_us = 0;
  nlohmann::json event;
};

class TraceFile : public ::testing::Test {
 protected:
  Bar op(int rank, const std::string& name) const {
    return find(rank, name, [](int row) { return row == 0; });
  }
  Bar call(int rank, const std::string& name) const {
    return find(rank, name, [](int row) { return row > 0; });
  }

  template <class Rows>
  Bar find(int rank, const std::string& name, const Rows& rows) const {
    for (const nlohmann::json& event : events_) {
      if (event.at("ph") != "X" || event.at("pid") != rank || event.at("name") != name) continue;
      const int row = event.at("tid").get<int>();
      const double begin_us = event.at("ts").get<double>();
      if (rows(row)) return {row, begin_us, begin_us + event.at("dur").get<double>(), event};
    }
    ADD_FAILURE() << "rank " << rank << " has no " << name;
    return {};
  }

  TempDir dir_;
  nlohmann::json events_ = events_of_two_ranks(dir_ / "trace.json");
};

TEST_F(TraceFile, RanksOfAHostShareAClock) {
  EXPECT_GE(op(1, "first").begin_us, op(0, "first").end_us + kLate_us - 0.002);  // both are written to 0.001
  EXPECT_GE(call(0, "recv").end_us, kLate_us) << "of a message that the late rank sends";
  // Nobody has the sum before the last one has brought its part.
  EXPECT_GE(call(0, "all_reduce").end_us, call(1, "all_reduce").begin_us);
  EXPECT_GE(call(1, "all_reduce").end_us, call(0, "all_reduce").begin_us);
}

TEST_F(TraceFile, OpsSayTheirPhase) {
  EXPECT_EQ(op(0, "first").event.at("cat"), "forward");
  EXPECT_EQ(op(0, "all_reduce").event.at("cat"), "communication");
}

TEST_F(TraceFile, NamesTheMembersOfGroups) {
  const auto rows = std::ranges::count_if(events_, [](const nlohmann::json& event) {
    return event.at("name") == "groups" && event.at("args").at("world") == nlohmann::json({0, 1});
  });
  EXPECT_EQ(rows, 2) << "one per rank";
}

TEST_F(TraceFile, CommunicationHasRowsOfItsOwn) {
  for (const int rank : {0, 1}) {
    const Bar receive = call(rank, "recv"), send = call(rank, "send"), sum = call(rank, "all_reduce");
    EXPECT_EQ(receive.row, 1);
    EXPECT_EQ(send.row, 2) << "posted while the receive was under way";
    EXPECT_EQ(sum.row, 1);
    EXPECT_GE(receive.begin_us, op(rank, "first").end_us - 0.002);
    EXPECT_GE(sum.begin_us, receive.end_us - 0.002);
    EXPECT_EQ(sum.event.at("cat"), "communication");
    EXPECT_EQ(sum.event.at("args").at("group"), "world");
    EXPECT_EQ(sum.event.at("args").at("bytes"), 24);
    const auto names_communication = [&](const nlohmann::json& event) {
      return event.at("ph") == "M" && event.at("name") == "thread_name" && event.at("pid") == rank &&
             event.at("args").at("name") == "communication";
    };
    EXPECT_EQ(std::ranges::count_if(events_, names_communication), 2);
  }
}

}  // namespace
}  // namespace megalith
