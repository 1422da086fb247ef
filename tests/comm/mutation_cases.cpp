#include "tests/comm/mutation_cases.h"

#include <algorithm>
#include <array>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/mpi/mpi_channel.h"
#include "megalith/comm/threads/room.h"

#include "tests/comm/row_cases.h"

namespace megalith::comm {

/// A tensor followed by memory that nobody may write.
class Guarded {
 public:
  explicit Guarded(Index count) : count_(count), memory_(static_cast<std::size_t>(count + kGuard), kMark) {}
  Tensor tensor() { return {memory_.data(), {count_}, DType::f32}; }
  void check() const {
    if (std::all_of(memory_.begin() + count_, memory_.end(), [](float each) { return each == kMark; })) return;
    throw InternalError(str("memory after a tensor of ", count_, " elements was written"));
  }

 private:
  static constexpr float kMark = 17;
  static constexpr Index kGuard = 1 << 18;
  Index count_;
  std::vector<float> memory_;
};

namespace {

constexpr Index kItem = sizeof(float);

Index input_length(Op op, Index count) { return op == Op::reduce_scatter || op == Op::all_to_all ? 2 * count : count; }
Index output_length(Op op, Index count) {
  return op == Op::all_gather || op == Op::all_to_all || op == Op::gather_rows ? 2 * count : count;
}

/// Every member reads all rows of both, of one element each.
void read_all_rows(World& world, Op op, Index count, Guarded& in, Guarded& out) {
  Exec ex;
  const Tensor mine = in.tensor().reshaped({count, 1});
  std::vector<WantedRow> wanted(static_cast<std::size_t>(2 * count));
  std::vector<std::vector<WeightedPlace>> terms(static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < 2 * count; ++i) {
    const RowPlace place{i % 2, i / 2};
    wanted[static_cast<std::size_t>(i)] = {WantedRow::Kind::row, place};
    terms[static_cast<std::size_t>(i / 2)].push_back({place});
  }
  if (op == Op::gather_rows) {
    PullLists lists(2 * count, 2 * count);
    lists.set(wanted);
    return gather_rows(ex, world.all(), mine, lists.pulls(), out.tensor().reshaped({2 * count, 1})).wait(ex);
  }
  SumLists lists(count, 2 * count);
  lists.set(terms);
  gather_sum_rows(ex, world.all(), mine, lists.sums(), out.tensor().reshaped({count, 1}), Write::overwrite).wait(ex);
}

void make_call(World& world, Op op, Index count, Guarded& in, Guarded& out) {
  Exec ex;
  const Group& all = world.all();
  const std::array<Index, 2> halves = {count, count};
  switch (op) {
    case Op::all_reduce:
      return all_reduce(ex, all, in.tensor(), Reduce::sum).wait(ex);
    case Op::reduce_scatter:
      return reduce_scatter(ex, all, in.tensor(), out.tensor(), Reduce::sum).wait(ex);
    case Op::all_gather:
      return all_gather(ex, all, in.tensor(), out.tensor()).wait(ex);
    case Op::all_to_all:
      return all_to_all(ex, all, in.tensor(), halves, out.tensor(), halves).wait(ex);
    case Op::broadcast:
      return broadcast(ex, all, in.tensor(), 0).wait(ex);
    case Op::barrier:
      return barrier(ex, all);
    case Op::gather_rows:
    case Op::gather_sum_rows:
      return read_all_rows(world, op, count, in, out);
    case Op::send:
    case Op::recv:
      break;
  }
  if (world.rank() == 0) return send(ex, all, in.tensor(), 1).wait(ex);
  recv(ex, all, in.tensor(), 0).wait(ex);
}

bool applies(Mutation::Kind kind, Op op) {
  if (kind == Mutation::Kind::reduce) return op == Op::all_reduce || op == Op::reduce_scatter;
  return kind != Mutation::Kind::count || op != Op::all_to_all;  // its counts are compared, it has no one count
}

std::vector<MutationCase> make_cases() {
  using enum Mutation::Kind;
  constexpr Index kStaged = Room::kStagedBytes / kItem, kSmall = Transfer::kSmallBytes / kItem,
                  kPart = MpiChannel::kPartBytes / kItem, kPiece = Link::kMaxBytes / kItem;
  std::vector<MutationCase> cases;
  const auto add = [&](Op op, std::initializer_list<Index> counts) {
    for (const Index count : counts) {
      for (const int culprit : {0, 1}) {
        for (const auto kind : {skip, twice, Mutation::Kind::count, dtype, reduce, swap}) {
          if (applies(kind, op)) cases.push_back({op, count, kind, culprit, count <= kStaged + 1});
        }
        cases.push_back({op, count, std::nullopt, culprit, count <= kStaged + 1});
      }
    }
  };
  for (const Op op : {Op::all_reduce, Op::reduce_scatter, Op::all_gather, Op::all_to_all, Op::broadcast, Op::send})
    add(op, {kStaged, kStaged + 1, kSmall, kSmall + 1});
  for (const Op op : {Op::gather_rows, Op::gather_sum_rows}) add(op, {kStaged, kSmall + 1});
  add(Op::all_reduce, {2 * kPart, 2 * kPart + 2});
  add(Op::reduce_scatter, {kPart, kPart + 1});
  add(Op::send, {kPiece, kPiece + 1});
  return cases;
}

}  // namespace

std::string MutationCase::name() const {
  constexpr std::array kKinds = {"skip", "twice", "count", "dtype", "reduce", "swap"};
  return str(name_of(op), '_', count, '_', kind ? kKinds[static_cast<std::size_t>(*kind)] : "half", "_rank", culprit);
}

const std::vector<MutationCase>& mutation_cases() {
  static const std::vector<MutationCase> cases = make_cases();
  return cases;
}

struct MutatedRank::Memory {
  Guarded first, in, out, last;

  Memory(Op op, Index count) : first(8), in(input_length(op, count)), out(output_length(op, count)), last(9) {}
  void check() const {
    for (const Guarded* each : {&first, &in, &out, &last}) each->check();
  }
};

MutatedRank::MutatedRank(const MutationCase& mutated, int rank) : mutated_(mutated) {
  const bool is_half = rank == mutated.culprit && !mutated.kind;
  memory_ = std::make_unique<Memory>(mutated.op, is_half ? mutated.count / 2 : mutated.count);
}

MutatedRank::~MutatedRank() = default;

void MutatedRank::run(World& world) {
  const bool is_culprit = world.rank() == mutated_.culprit;
  const Op op = mutated_.op;
  const Index count = is_culprit && !mutated_.kind ? mutated_.count / 2 : mutated_.count;
  auto& [first, in, out, last] = *memory_;
  if (is_culprit && mutated_.kind) mutate(world, {*mutated_.kind, 1});
  try {
    make_call(world, Op::all_reduce, 8, first, out);
    make_call(world, op, count, in, out);
    // A message that was lost shows in the next one of its lane.
    make_call(world, op == Op::send ? Op::send : Op::all_reduce, 9, last, out);
    make_call(world, Op::barrier, 0, first, out);
  } catch (...) {
    memory_->check();
    throw;
  }
  memory_->check();
}

}  // namespace megalith::comm
