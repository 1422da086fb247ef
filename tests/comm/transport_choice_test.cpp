#include "megalith/comm/peer/transport_choice.h"

#include <gtest/gtest.h>

namespace megalith::comm {
namespace {

constexpr Index kMiB = Index{1} << 20;

Call call_of(Op op, Index bytes, Priority priority = Priority::awaited) {
  return {.op = op, .dtype = DType::f32, .reduce = Reduce::sum, .priority = priority, .count = bytes / 4};
}

constexpr TransportChoice kTwo{.members = 2, .messages = Messages::none, .reaches_tensors = true};
constexpr TransportChoice kFour{.members = 4, .messages = Messages::none, .reaches_tensors = true};
constexpr TransportChoice kUnreached{.members = 4, .messages = Messages::none, .reaches_tensors = false};
constexpr TransportChoice kMessages{.members = 4, .messages = Messages::neighbours, .reaches_tensors = false};

TEST(TransportChoice, OfCollectivesThatOverlapWithComputeIsCopyEngines) {
  for (const Op op : {Op::all_reduce, Op::reduce_scatter}) {
    const Call small = call_of(op, 31 * kMiB, Priority::beside_work), large = call_of(op, 32 * kMiB, small.priority);
    for (const TransportChoice& group : {kTwo, kFour}) {
      EXPECT_EQ(group.of(small, Capturing::no), PeerTransport::copy_engines);
      EXPECT_EQ(group.of(large, Capturing::no), PeerTransport::copy_engines);
      EXPECT_EQ(group.of(small, Capturing::yes), PeerTransport::symmetric_kernels) << "copies delay nodes of a graph";
      EXPECT_EQ(group.of(large, Capturing::yes), PeerTransport::copy_engines);
    }
  }
}

TEST(TransportChoice, OfOtherCollectivesIsAKernelWithADeviceBarrier) {
  for (const Op op : {Op::all_reduce, Op::reduce_scatter, Op::all_gather}) {
    for (const Capturing capturing : {Capturing::no, Capturing::yes}) {
      EXPECT_EQ(kFour.of(call_of(op, kMiB), capturing), PeerTransport::symmetric_kernels);
      EXPECT_EQ(kFour.of(call_of(op, kMiB, Priority::alone), capturing), PeerTransport::symmetric_kernels);
      EXPECT_EQ(kTwo.of(call_of(op, kMiB, Priority::alone), capturing), PeerTransport::symmetric_kernels);
    }
  }
}

TEST(TransportChoice, OfTwoMembersThatSoonWait) {
  const Call reduce = call_of(Op::all_reduce, kMiB), scatter = call_of(Op::reduce_scatter, kMiB),
             gather = call_of(Op::all_gather, kMiB);
  EXPECT_EQ(kTwo.of(reduce, Capturing::no), PeerTransport::copy_engines);
  EXPECT_EQ(kTwo.of(reduce, Capturing::yes), PeerTransport::symmetric_kernels);
  EXPECT_EQ(kTwo.of(scatter, Capturing::no), PeerTransport::symmetric_kernels);
  EXPECT_EQ(kTwo.of(scatter, Capturing::yes), PeerTransport::symmetric_kernels);
  EXPECT_EQ(kTwo.of(gather, Capturing::no), PeerTransport::symmetric_kernels);
  EXPECT_EQ(kTwo.of(gather, Capturing::yes), PeerTransport::kernels_in_barriers);
}

TEST(TransportChoice, WhereTensorsAreOutOfReachIsCopyEngines) {
  for (const Op op : {Op::all_reduce, Op::reduce_scatter, Op::all_gather}) {
    for (const Priority priority : {Priority::awaited, Priority::beside_work, Priority::alone}) {
      EXPECT_EQ(kUnreached.of(call_of(op, kMiB, priority), Capturing::no), PeerTransport::copy_engines);
      EXPECT_EQ(kUnreached.of(call_of(op, kMiB, priority), Capturing::yes), PeerTransport::copy_engines);
    }
  }
}

TEST(TransportChoice, LeavesSmallCallsAndOtherKindsToNccl) {
  EXPECT_TRUE(kFour.takes(call_of(Op::all_reduce, kMiB)));
  EXPECT_FALSE(kFour.takes(call_of(Op::all_reduce, kMiB - 4)));
  EXPECT_TRUE(kFour.takes(call_of(Op::all_gather, kMiB / 4))) << "a gather's result is 4 times its input";
  EXPECT_FALSE(kFour.takes(call_of(Op::all_gather, kMiB / 4 - 4)));
  Call maximum = call_of(Op::all_reduce, kMiB), integers = maximum;
  maximum.reduce = Reduce::max;
  integers.dtype = DType::i32;
  EXPECT_FALSE(kFour.takes(maximum));
  EXPECT_FALSE(kFour.takes(integers));
  integers.op = Op::all_gather;
  EXPECT_TRUE(kFour.takes(integers)) << "a gather only copies";
  for (const Op op : {Op::all_to_all, Op::broadcast, Op::barrier, Op::send, Op::recv})
    EXPECT_FALSE(kFour.takes(call_of(op, 64 * kMiB))) << name_of(op);
}

TEST(TransportChoice, OfMessagesIsKernelsInAGraph) {
  for (const Op op : {Op::send, Op::recv}) {
    EXPECT_EQ(kMessages.of(call_of(op, kMiB / 4), Capturing::no), PeerTransport::copy_engines);
    EXPECT_EQ(kMessages.of(call_of(op, kMiB / 4), Capturing::yes), PeerTransport::copy_kernels);
    EXPECT_FALSE(kMessages.takes(call_of(op, kMiB / 4 - 4)));
  }
  EXPECT_FALSE(kMessages.takes(call_of(Op::all_reduce, 64 * kMiB))) << "such a mailbox has no room for collectives";
}

TEST(TransportChoice, OfRowsIsAKernelWithADeviceBarrierOfAnySize) {
  for (const Op op : {Op::gather_rows, Op::gather_sum_rows}) {
    for (const Capturing capturing : {Capturing::no, Capturing::yes}) {
      for (const TransportChoice& group : {kTwo, kFour})
        EXPECT_EQ(group.of(call_of(op, 4), capturing), PeerTransport::symmetric_kernels);
      for (const TransportChoice& group : {kUnreached, kMessages})
        EXPECT_EQ(group.of(call_of(op, 64 * kMiB), capturing), PeerTransport::none);
    }
  }
}

}  // namespace
}  // namespace megalith::comm
