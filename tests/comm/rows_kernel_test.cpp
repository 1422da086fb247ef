// The kernels of row collectives, between ranks that share GPUs: all on one GPU, or on several.
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

#include "tests/comm/peer_ranks.h"
#include "tests/comm/row_cases.h"

namespace megalith::comm {
namespace {

Group rows_of_all(World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group("rows", std::move(ranks));
}

class RowKernels : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const int gpus = device::num_gpus();
    if (gpus == 0) GTEST_SKIP() << "needs a GPU";
    if (GetParam() > kMaxRanksAGpu * gpus) GTEST_SKIP() << "needs more GPUs";
  }
  static void run(const std::function<void(World&)>& body) { EXPECT_NO_THROW(run_peer_ranks(GetParam(), body)); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RowKernels, testing::Values(2, 3, 4, 8), testing::PrintToStringParamName());

/// Rows of 2 bytes; of 132, which no bulk copy takes; of 96 and 4,096; of 5,200, in two parts of a gather; none.
constexpr RowSizes kSizes[] = {{5, 1, 12}, {40, 33, 100}, {64, 48, 700}, {90, 2048, 300}, {17, 2600, 41}, {3, 8, 0}};

TEST_P(RowKernels, GatherRows) {
  run([](World& world) {
    Exec ex(Device::cuda);
    const Group group = rows_of_all(world);
    for (int pattern = 0; pattern < kRowPatterns; ++pattern) {
      for (const RowSizes& sizes : kSizes) check_gather_rows(ex, group, DType::bf16, sizes, pattern);
    }
    for (const DType dtype : {DType::u8, DType::f32, DType::f64}) check_gather_rows(ex, group, dtype, {40, 33, 100}, 2);
  });
}

TEST_P(RowKernels, SumRows) {
  run([](World& world) {
    Exec ex(Device::cuda);
    const Group group = rows_of_all(world);
    const SumOptions added{Write::accumulate, SumOptions::Weights::none};
    for (int pattern = 0; pattern < kRowPatterns; ++pattern) {
      for (const RowSizes& sizes : kSizes) check_gather_sum_rows(ex, group, DType::bf16, sizes, pattern, {});
    }
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
      check_gather_sum_rows(ex, group, dtype, {40, 1032, 100}, 2, added);
      check_gather_sum_rows(ex, group, dtype, {40, 33, 100}, 2, {});
    }
  });
}

TEST_P(RowKernels, ReadRowsOf32MiB) {
  if (GetParam() > 2) GTEST_SKIP() << "two members show it";
  run([](World& world) {
    Exec ex(Device::cuda);
    const Group group = rows_of_all(world);
    constexpr Index kWidth = Index{16} << 20;
    check_gather_rows(ex, group, DType::bf16, {2, kWidth, 2}, 4);
    check_gather_sum_rows(ex, group, DType::bf16, {1, kWidth, 1}, 4, {});
  });
}

/// Messages of a pipeline are such pieces of memory. Ranks of several GPUs show it: one GPU reaches all of its memory.
TEST_P(RowKernels, ReadTheSmallestPieceOfMemory) {
  run([](World& world) {
    Exec ex(Device::cuda);
    const Group group = rows_of_all(world);
    const Buffer piece(64 * Index{sizeof(float)}, Device::cuda);
    const Tensor mine(piece.data(), {4, 16}, DType::f32), out = ex.tensor({1, 16}, DType::f32);
    const std::vector<float> values(64, static_cast<float>(world.rank() + 1));
    ex.copy(mine.raw(), values.data(), mine.bytes());
    std::vector<std::int32_t> every_member;
    for (int member = 0; member < world.size(); ++member) every_member.insert(every_member.end(), {member, 2});
    const auto list = [&](const std::vector<std::int32_t>& entries, const Shape& shape) {
      const Tensor tensor = ex.tensor(shape, DType::i32);
      ex.copy(tensor.raw(), entries.data(), tensor.bytes());
      ex.synchronize();
      return tensor;
    };
    const RowSums sums{
        .begin = list({0, world.size()}, {2}), .places = list(every_member, {world.size(), 2}), .weights = {}};
    barrier(ex, group);
    gather_sum_rows(ex, group, mine, sums, out, Write::overwrite).wait(ex);
    ex.synchronize();
    std::vector<float> sum(16);
    ex.copy(sum.data(), out.raw(), out.bytes());
    ex.synchronize();
    barrier(ex, group);
    const auto want = static_cast<float>(world.size() * (world.size() + 1) / 2);
    if (sum != std::vector<float>(16, want)) throw InternalError(str("the sum is ", sum[0], ", not ", want));
  });
}

/// Entries that name no member, no row, no place: the kernel leaves them out, and reads and writes nothing else.
TEST_P(RowKernels, LeaveOutWhatDoesNotExist) {
  run([](World& world) {
    Exec ex(Device::cuda);
    const Group group = rows_of_all(world);
    const Tensor mine = tensor_in_reach(ex, {4, 256}, DType::f32), out = ex.tensor({6, 256}, DType::f32);
    std::vector<float> values(4 * 256, 2), left(6 * 256, 7), result(left.size());
    ex.copy(mine.raw(), values.data(), mine.bytes());
    ex.copy(out.raw(), left.data(), out.bytes());
    const auto list = [&](const std::vector<std::int32_t>& entries, const Shape& shape) {
      const Tensor tensor = ex.tensor(shape, DType::i32);
      ex.copy(tensor.raw(), entries.data(), tensor.bytes());
      ex.synchronize();
      return tensor;
    };
    // Row 1 exists, and is wanted once by a row that exists. Row 5 becomes zeros.
    const RowPulls pulls{.counts = list({99, 77}, {2}),
                         .sources = list({world.size(), 0, -1, 1, 0, 4, 1, 1}, {4, 2}),
                         .begin = list({0, 1, 2, 3, 6}, {5}),
                         .wants = list({0, 1, 2, 6, 3, -1, 5}, {7})};
    const RowSums sums{.begin = list({0, 3, 3, 3, 3, 3, 99}, {7}),
                       .places = list({0, -1, 1, 3, world.size(), 0, 0, 0}, {4, 2}),
                       .weights = {}};
    const auto get = [&] {
      ex.synchronize();
      ex.copy(result.data(), out.raw(), out.bytes());
      ex.synchronize();
      barrier(ex, group);
    };
    const auto expect_rows = [&](const std::vector<float>& rows) {
      for (std::size_t i = 0; i < result.size(); ++i) {
        if (result[i] != rows[i / 256])
          throw InternalError(str("row ", i / 256, " holds ", result[i], ", not ", rows[i / 256]));
      }
    };
    barrier(ex, group);
    gather_rows(ex, group, mine, pulls, out).wait(ex);
    get();
    expect_rows({7, 7, 7, 2, 7, 0});
    gather_sum_rows(ex, group, mine, sums, out, Write::overwrite).wait(ex);
    get();
    expect_rows({2, 0, 0, 0, 0, 2});
  });
}

/// The lists of the next launch are copied in before it.
TEST_P(RowKernels, ReadTheirListsAtEveryLaunchOfAGraph) {
  run([](World& world) {
    constexpr Index kRows = 50, kOut = 80, kWidth = 1024;
    Exec ex(Device::cuda);
    const Group group = rows_of_all(world);
    const auto value = [](int member, Index row, int launch) {
      return static_cast<float>(member * 10000 + row * 100 + launch);
    };
    const Tensor mine = tensor_in_reach(ex, {kRows, kWidth}, DType::f32), out = ex.tensor({kOut, kWidth}, DType::f32);
    const Index most = kRows * world.size();
    const RowPulls pulls{.counts = ex.tensor({2}, DType::i32),
                         .sources = ex.tensor({most, 2}, DType::i32),
                         .begin = ex.tensor({most + 1}, DType::i32),
                         .wants = ex.tensor({kOut}, DType::i32)};
    const auto bytes = [](const Tensor& tensor) {
      return std::span(static_cast<const std::byte*>(tensor.raw()), static_cast<std::size_t>(tensor.bytes()));
    };
    Capture capture("rows", {bytes(mine), bytes(out), bytes(pulls.counts), bytes(pulls.sources), bytes(pulls.begin),
                             bytes(pulls.wants)});
    ex.synchronize();
    barrier(ex, group);
    Graph graph = ex.captured(capture, [&] { gather_rows(ex, group, mine, pulls, out).wait(ex); });
    graph.prepare(ex);
    ex.synchronize();
    barrier(ex, group);
    std::vector<float> values(static_cast<std::size_t>(kRows * kWidth)),
        result(static_cast<std::size_t>(kOut * kWidth));
    for (int launch = 0; launch < 30; ++launch) {
      std::vector<WantedRow> wanted(kOut);
      for (Index row = 0; row < kOut; ++row) {
        const auto place = static_cast<std::int32_t>(row * 7 + launch * 13 + world.rank());
        wanted[static_cast<std::size_t>(row)] = {WantedRow::Kind::row,
                                                 {place % world.size(), place % static_cast<std::int32_t>(kRows)}};
      }
      PullLists lists(most, kOut);
      lists.set(wanted);
      for (Index i = 0; i < kRows * kWidth; ++i)
        values[static_cast<std::size_t>(i)] = value(world.rank(), i / kWidth, launch);
      ex.copy(mine.raw(), values.data(), mine.bytes());
      ex.copy(pulls.counts.raw(), lists.counts.data(), pulls.counts.bytes());
      ex.copy(pulls.sources.raw(), lists.sources.data(), pulls.sources.bytes());
      ex.copy(pulls.begin.raw(), lists.begin.data(), pulls.begin.bytes());
      ex.copy(pulls.wants.raw(), lists.wants.data(), pulls.wants.bytes());
      graph.launch(ex);
      ex.synchronize();
      ex.copy(result.data(), out.raw(), out.bytes());
      ex.synchronize();
      for (Index i = 0; i < kOut * kWidth; ++i) {
        const RowPlace& place = wanted[static_cast<std::size_t>(i / kWidth)].place;
        if (result[static_cast<std::size_t>(i)] != value(place.member, place.row, launch))
          throw InternalError(
              str("launch ", launch, ": row ", i / kWidth, " holds ", result[static_cast<std::size_t>(i)]));
      }
    }
    barrier(ex, group);  // before the graph goes
  });
}

}  // namespace
}  // namespace megalith::comm
