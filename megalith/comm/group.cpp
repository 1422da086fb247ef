#include "megalith/comm/group.h"

#include <functional>
#include <memory>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith::comm {
namespace {

[[noreturn]] void refuse(Op op, const std::string& text) { throw ShapeError(str('[', name_of(op), "] ", text)); }

Call make_call(Op op, const Tensor& tensor, const Where& where) {
  Call call;
  call.op = op;
  call.dtype = tensor.dtype();
  call.count = tensor.numel();
  call.memory = tensor.raw();
  call.file = where.file_name();
  call.line = where.line();
  call.site = static_cast<std::uint32_t>(mix64(fnv1a(call.file) + call.line * 0x10000u + where.column()));
  return call;
}

void expect_tensor(Op op, const Tensor& tensor, std::string_view which) {
  if (!tensor) refuse(op, str("there is no tensor '", which, "'"));
}

/// `many` must be `few` with its first dimension `times` as long.
void expect_multiple(Op op, const Tensor& many, const Tensor& few, int times) {
  Shape wanted = few.shape();
  if (wanted.rank() > 0) wanted.set(0, wanted[0] * times);
  if (few.shape().rank() == 0 || many.shape() != wanted) {
    refuse(op, str("shapes ", many.shape(), " and ", few.shape(), ": the first dimension must be ", times,
                   " times as long, the others equal"));
  }
}

void expect_same_dtype(Op op, const Tensor& in, const Tensor& out) {
  if (in.dtype() == out.dtype()) return;
  refuse(op, str("dtype = ", name_of(in.dtype()), " in and ", name_of(out.dtype()), " out: must be the same"));
}

/// The result may overwrite nothing that others still read: `in` and `out` are apart, or `part` is `own` exactly.
void expect_apart(Op op, const Tensor& in, const Tensor& out, const void* own, const void* part) {
  const auto* a = static_cast<const std::byte*>(in.raw());
  const auto* b = static_cast<const std::byte*>(out.raw());
  const std::less<const std::byte*> before;
  if (in.bytes() == 0 || out.bytes() == 0 || own == part) return;
  if (before(a, b + out.bytes()) && before(b, a + in.bytes())) {
    refuse(op, "in and out share memory: must be apart, or one the rank's own part of the other");
  }
}

const std::byte* part_of(const Tensor& tensor, int member, int size) {
  return static_cast<const std::byte*>(tensor.raw()) + tensor.bytes() / size * member;
}

/// What a collective of a group of one rank does.
Pending copy_alone(Exec& ex, const OpInfo& op, const Tensor& in, const Tensor& out) {
  OpInfo copy = op;
  copy.kind = OpKind::local;
  ex.run(copy, [in, out](Exec& runs, Stream stream) {
    device::copy(runs.device(), out.raw(), in.raw(), in.bytes(), stream);
  });
  return {};
}

/// Notes the end of a call that was made. It ends at once, at the present point of the transport's own stream, or when
/// it is waited for.
void note_end(Tracer& tracer, const Channel& channel, Ticket ticket, Stream caller) {
  const Stream stream = ticket.id < 0 ? caller : channel.stream_of(ticket);
  if (ticket.id < 0 || stream.handle != nullptr) tracer.done(ticket.entry, stream);
}

/// Records the call, which communicates `bytes`, and makes it by kernel(recorded call). The kernel holds its arguments
/// by value and returns a ticket.
template <class Kernel>
Ticket communicate(Exec& ex, Channel& channel, const Call& call, Index bytes, const Kernel& kernel) {
  if (ex.device() != channel.device()) {
    throw BackendError(str(channel.where(call.op), "the tensors are of device ", name_of(ex.device()),
                           ", this group communicates between memories of device ", name_of(channel.device())));
  }
  const auto make = [&ex, &channel, bytes, kernel](Call wanted) {
    wanted.ops_run = ex.ops_run();
    const Call booked = channel.book(wanted, bytes);
    Tracer* const tracer = ex.tracer();
    if (tracer != nullptr) tracer->posted(booked.entry, {name_of(booked.op), channel.name(), bytes}, ex.stream());
    const bool hosts_meet = channel.hosts_meet() && !is_message(booked.op);
    if (hosts_meet) channel.meet_hosts();
    Ticket ticket = kernel(booked);
    if (hosts_meet) channel.meet_hosts();
    ticket.entry = booked.entry;
    if (ticket.id < 0) channel.note_done(booked.entry);
    if (tracer != nullptr) note_end(*tracer, channel, ticket, ex.stream());
    return ticket;
  };
  if (CallHook* hook = channel.hook()) {
    // A deferred call is made after its caller has returned. Nobody then has its ticket.
    const auto kept = std::make_shared<Ticket>();
    hook->apply(call, [make, kept](const Call& wanted) { *kept = make(wanted); });
    return *kept;
  }
  return make(call);
}

void rows_to_bytes(std::span<const Index> rows, Index row_bytes, std::span<Index> bytes) {
  for (std::size_t i = 0; i < rows.size(); ++i) bytes[i] = rows[i] * row_bytes;
}

void expect_rows(const Tensor& tensor, std::span<const Index> counts, int size, std::string_view which) {
  constexpr Op op = Op::all_to_all;
  if (static_cast<int>(counts.size()) != size) {
    refuse(op, str(which, "_counts has ", counts.size(), " entries: must have one for each of ", size, " ranks"));
  }
  Index rows = 0;
  for (const Index count : counts) {
    if (count < 0) refuse(op, str(which, "_counts has an entry ", count, ": must be at least 0"));
    rows += count;
  }
  if (tensor.shape().rank() == 0 || tensor.dim(0) != rows) {
    refuse(op, str(which, " tensor of shape ", tensor.shape(), ": must have ", rows, " rows, the sum of ", which,
                   "_counts"));
  }
}

void check_all_to_all(const Group& group, const Tensor& in, std::span<const Index> send_counts, const Tensor& out,
                      std::span<const Index> recv_counts) {
  constexpr Op op = Op::all_to_all;
  expect_tensor(op, in, "in");
  expect_tensor(op, out, "out");
  expect_same_dtype(op, in, out);
  expect_rows(in, send_counts, group.size(), "send");
  expect_rows(out, recv_counts, group.size(), "recv");
  Shape row = in.shape();
  row.set(0, out.dim(0));
  if (row != out.shape()) refuse(op, str("shapes ", in.shape(), " and ", out.shape(), ": rows must be alike"));
  const auto own = static_cast<std::size_t>(group.rank());
  if (send_counts[own] != recv_counts[own]) {
    refuse(op, str("sends ", send_counts[own], " rows to itself and receives ", recv_counts[own], ": must be equal"));
  }
}

void check_message(Op op, const Group& group, const Tensor& tensor, int peer, int lane) {
  expect_tensor(op, tensor, "tensor");
  if (peer < 0 || peer >= group.size()) {
    refuse(op, str("peer ", peer, " is outside group ", group.name(), " of ", group.size(), " ranks"));
  }
  if (peer == group.rank()) refuse(op, str("peer ", peer, " of group ", group.name(), " is this rank itself"));
  if (lane < 0 || lane >= kMaxLanes) refuse(op, str("lane = ", lane, ": must be from 0 to ", kMaxLanes - 1));
}

/// Runs `make`, which starts a call and returns its ticket, as the op. The call uses the tensors until it is waited
/// for.
template <class Make>
Pending start(Exec& ex, const OpInfo& op, Channel& channel, const Make& make, const Pending::InUse& in_use) {
  if (ex.capture() != nullptr) {
    const auto captured = std::make_shared<Pending::Captured>();
    captured->capture = ex.capture()->number();
    ex.run(op, [make, captured](Exec& runs, Stream stream) { captured->ticket = make(runs, stream); });
    return {channel, captured, in_use};
  }
  Ticket ticket;
  ex.run(op, [&](Exec& runs, Stream stream) { ticket = make(runs, stream); });
  return {channel, ticket, in_use};
}

/// Makes an all-to-all. `Counts`: spans, or vectors that outlive the caller's.
template <class Counts>
struct AllToAllCall {
  Channel& channel;
  Call call;
  Tensor in, out;
  Counts send_counts, recv_counts;

  Ticket operator()(Exec& runs, Stream stream) const {
    Index row_bytes = size_of(in.dtype());
    for (int i = 1; i < in.shape().rank(); ++i) row_bytes *= in.dim(i);
    rows_to_bytes(send_counts, row_bytes, channel.send_bytes());
    rows_to_bytes(recv_counts, row_bytes, channel.recv_bytes());
    return communicate(
        runs, channel, call, in.bytes(), [&to = channel, from = in, into = out, stream](const Call& wanted) {
          return to.all_to_all(wanted, {from.raw(), to.send_bytes()}, {into.raw(), to.recv_bytes()}, stream);
        });
  }
};

}  // namespace

Pending& Pending::operator=(Pending&& from) noexcept {
  if (this == &from) return *this;
  drop();
  channel_ = std::exchange(from.channel_, nullptr);
  ticket_ = from.ticket_;
  captured_ = std::move(from.captured_);
  in_use_ = from.in_use_;
  return *this;
}

void Pending::drop() noexcept {
  if (channel_ != nullptr && ticket_.id >= 0) channel_->cancel(ticket_);
  channel_ = nullptr;
}

/// A graph repeats both ends of a call or neither.
void Pending::expect_same_capture(const Exec& ex) const {
  const Capture* capture = ex.capture();
  const std::uint64_t waits = capture == nullptr ? 0 : capture->number(), started = captured_ ? captured_->capture : 0;
  if (started == waits) return;
  if (capture == nullptr) {
    throw InternalError(str("[wait] group ", channel_->name(), describe(ex.call_site()),
                            ": the call was started while a graph was captured: must be awaited within that capture"));
  }
  capture->refuse("wait", str("a call of group ", channel_->name(), " that was started ",
                              captured_ ? "in another graph" : "outside of the graph",
                              ": must be awaited where it was started, as a launch repeats both or neither"));
}

void Pending::wait(Exec& ex) {
  if (channel_ == nullptr) return;
  expect_same_capture(ex);
  const auto finish = [channel = channel_, ticket = ticket_, captured = captured_](Exec& runs, Stream stream) {
    const Ticket mine = captured ? captured->ticket : ticket;
    if (mine.id < 0) return;
    channel->wait(mine, stream);
    channel->note_done(mine.entry);
    if (runs.tracer() != nullptr && channel->stream_of(mine).handle == nullptr) runs.tracer()->done(mine.entry, stream);
  };
  const auto& [first, second, third, fourth, fifth, sixth] = in_use_;
  if (third) {
    ex.run({.name = "wait", .reads = {first, second, third, fourth, fifth, sixth}, .writes = {}, .kind = OpKind::wait},
           finish);
  } else if (second) {
    ex.run({.name = "wait", .reads = {first, second}, .writes = {}, .kind = OpKind::wait}, finish);
  } else {
    ex.run({.name = "wait", .reads = {first}, .writes = {}, .kind = OpKind::wait}, finish);
  }
  channel_ = nullptr;
}

Pending all_reduce(Exec& ex, const Group& group, const Tensor& tensor, Reduce reduce, Priority priority, Where where) {
  expect_tensor(Op::all_reduce, tensor, "tensor");
  if (group.size() == 1) return {};
  Call call = make_call(Op::all_reduce, tensor, where);
  call.reduce = reduce;
  call.priority = priority;
  const auto make = [&channel = group.channel(), call, tensor](Exec& runs, Stream stream) {
    return communicate(runs, channel, call, tensor.bytes(), [&channel, tensor, stream](const Call& c) {
      return channel.all_reduce(c, tensor.raw(), stream);
    });
  };
  return start(ex, {.name = "all_reduce", .reads = {tensor}, .writes = {tensor}, .kind = OpKind::communication},
               group.channel(), make, {tensor});
}

Pending reduce_scatter(Exec& ex, const Group& group, const Tensor& in, const Tensor& out, Reduce reduce,
                       Priority priority, Where where) {
  constexpr Op op = Op::reduce_scatter;
  expect_tensor(op, in, "in");
  expect_tensor(op, out, "out");
  expect_same_dtype(op, in, out);
  expect_multiple(op, in, out, group.size());
  if (!ex.recording() && group.size() > 1)
    expect_apart(op, in, out, out.raw(), part_of(in, group.rank(), group.size()));
  const OpInfo info{.name = "reduce_scatter", .reads = {in}, .writes = {out}, .kind = OpKind::communication};
  if (group.size() == 1) return copy_alone(ex, info, in, out);
  Call call = make_call(op, in, where);
  call.reduce = reduce;
  call.priority = priority;
  const auto make = [&channel = group.channel(), call, in, out](Exec& runs, Stream stream) {
    return communicate(runs, channel, call, in.bytes(), [&channel, in, out, stream](const Call& c) {
      return channel.reduce_scatter(c, in.raw(), out.raw(), stream);
    });
  };
  return start(ex, info, group.channel(), make, {in, out});
}

Pending all_gather(Exec& ex, const Group& group, const Tensor& in, const Tensor& out, Priority priority, Where where) {
  constexpr Op op = Op::all_gather;
  expect_tensor(op, in, "in");
  expect_tensor(op, out, "out");
  expect_same_dtype(op, in, out);
  expect_multiple(op, out, in, group.size());
  if (!ex.recording() && group.size() > 1)
    expect_apart(op, in, out, in.raw(), part_of(out, group.rank(), group.size()));
  const OpInfo info{.name = "all_gather", .reads = {in}, .writes = {out}, .kind = OpKind::communication};
  if (group.size() == 1) return copy_alone(ex, info, in, out);
  Call call = make_call(op, in, where);
  call.priority = priority;
  const auto make = [&channel = group.channel(), call, in, out](Exec& runs, Stream stream) {
    return communicate(runs, channel, call, in.bytes(), [&channel, in, out, stream](const Call& c) {
      return channel.all_gather(c, in.raw(), out.raw(), stream);
    });
  };
  return start(ex, info, group.channel(), make, {in, out});
}

Pending all_to_all(Exec& ex, const Group& group, const Tensor& in, std::span<const Index> send_counts,
                   const Tensor& out, std::span<const Index> recv_counts, Where where) {
  constexpr Op op = Op::all_to_all;
  check_all_to_all(group, in, send_counts, out, recv_counts);
  if (!ex.recording() && group.size() > 1) expect_apart(op, in, out, in.raw(), nullptr);
  const OpInfo info{.name = "all_to_all", .reads = {in}, .writes = {out}, .kind = OpKind::communication};
  if (group.size() == 1) return copy_alone(ex, info, in, out);
  Call call = make_call(op, in, where);
  call.count = 0;
  if (ex.capture() == nullptr) {
    const AllToAllCall<std::span<const Index>> make{group.channel(), call, in, out, send_counts, recv_counts};
    return start(ex, info, group.channel(), make, {in, out});
  }
  // A graph repeats the call with the counts of the capture, which the caller need not keep.
  const AllToAllCall<std::vector<Index>> make{group.channel(),
                                              call,
                                              in,
                                              out,
                                              {send_counts.begin(), send_counts.end()},
                                              {recv_counts.begin(), recv_counts.end()}};
  return start(ex, info, group.channel(), make, {in, out});
}

namespace {

/// What a row collective of a group of one rank does.
template <class Args>
Pending read_rows_alone(Exec& ex, const OpInfo& op, const Args& args) {
  OpInfo local = op;
  local.kind = OpKind::local;
  ex.run(local, [args, name = op.name](Exec& runs, Stream) {
    if (runs.device() != Device::cpu)
      throw BackendError(str('[', name, "] a group of one rank reads rows on CPUs only: use ops::permute_rows()"));
    if (const std::string fault = fault_of_lists(1, args); !fault.empty())
      throw CollectiveError(str('[', name, "] a group of one rank: ", fault));
    std::vector<const std::byte*> rows;
    take_own_rows(args, rows);
  });
  return {};
}

/// A row collective, made by send(recorded call, stream).
template <class Args, class Send>
Pending read_rows(Exec& ex, const Group& group, const OpInfo& op, Call call, const Args& args,
                  const Pending::InUse& in_use, const Send& send) {
  if (group.size() == 1) return read_rows_alone(ex, op, args);
  Channel& channel = group.channel();
  call.root = static_cast<std::int32_t>(args.mine.dim(1));
  const auto make = [&channel, call, args, send](Exec& runs, Stream stream) {
    const bool on_cpu = runs.device() == Device::cpu;
    return communicate(runs, channel, call, args.mine.bytes(), [&channel, args, send, stream, on_cpu](const Call& c) {
      const std::string fault = on_cpu ? fault_of_lists(channel.size(), args) : "";
      if (!fault.empty()) throw CollectiveError(channel.where(c.op) + fault);
      return send(channel, c, args, stream);
    });
  };
  return start(ex, op, channel, make, in_use);
}

}  // namespace

Pending gather_rows(Exec& ex, const Group& group, const Tensor& mine, const RowPulls& pulls, const Tensor& out,
                    Where where) {
  const GatherRows args{mine, pulls, out};
  check_shapes(args);
  if (!ex.recording()) expect_apart(Op::gather_rows, mine, out, mine.raw(), nullptr);
  const OpInfo op{.name = "gather_rows",
                  .reads = {mine, pulls.counts, pulls.sources, pulls.begin, pulls.wants},
                  .writes = {out},
                  .kind = OpKind::communication};
  return read_rows(ex, group, op, make_call(Op::gather_rows, mine, where), args,
                   {mine, out, pulls.counts, pulls.sources, pulls.begin, pulls.wants},
                   [](Channel& channel, const Call& call, const GatherRows& rows, Stream stream) {
                     return channel.gather_rows(call, rows, stream);
                   });
}

Pending gather_sum_rows(Exec& ex, const Group& group, const Tensor& mine, const RowSums& sums, const Tensor& out,
                        Write write, Where where) {
  const GatherSumRows args{mine, sums, out, write};
  check_shapes(args);
  if (!ex.recording()) expect_apart(Op::gather_sum_rows, mine, out, mine.raw(), nullptr);
  const OpInfo op{.name = "gather_sum_rows",
                  .reads = {mine, sums.begin, sums.places, sums.weights, write == Write::accumulate ? out : Tensor()},
                  .writes = {out},
                  .kind = OpKind::communication};
  return read_rows(ex, group, op, make_call(Op::gather_sum_rows, mine, where), args,
                   {mine, out, sums.begin, sums.places, sums.weights},
                   [](Channel& channel, const Call& made, const GatherSumRows& rows, Stream stream) {
                     return channel.gather_sum_rows(made, rows, stream);
                   });
}

Pending broadcast(Exec& ex, const Group& group, const Tensor& tensor, int root, Where where) {
  expect_tensor(Op::broadcast, tensor, "tensor");
  if (root < 0 || root >= group.size()) {
    refuse(Op::broadcast, str("root ", root, " is outside group ", group.name(), " of ", group.size(), " ranks"));
  }
  if (group.size() == 1) return {};
  Call call = make_call(Op::broadcast, tensor, where);
  call.root = root;
  const auto make = [&channel = group.channel(), call, tensor](Exec& runs, Stream stream) {
    return communicate(runs, channel, call, tensor.bytes(), [&channel, tensor, stream](const Call& c) {
      return channel.broadcast(c, tensor.raw(), stream);
    });
  };
  return start(ex, {.name = "broadcast", .reads = {tensor}, .writes = {tensor}, .kind = OpKind::communication},
               group.channel(), make, {tensor});
}

void barrier(Exec& ex, const Group& group, Where where) {
  if (group.size() == 1) return;
  const Call call = make_call(Op::barrier, Tensor(nullptr, {0}, DType::u8), where);
  ex.run({.name = "barrier", .reads = {}, .writes = {}, .kind = OpKind::communication},
         [&channel = group.channel(), call](Exec& runs, Stream stream) {
           communicate(runs, channel, call, 0, [&channel, stream](const Call& c) {
             channel.barrier(c, stream);
             return Ticket();
           });
         });
}

Pending send(Exec& ex, const Group& group, const Tensor& tensor, int peer, int lane, Where where) {
  check_message(Op::send, group, tensor, peer, lane);
  Call call = make_call(Op::send, tensor, where);
  call.root = peer;
  call.lane = lane;
  const auto make = [&channel = group.channel(), call, tensor](Exec& runs, Stream stream) {
    return communicate(runs, channel, call, tensor.bytes(), [&channel, tensor, stream](const Call& c) {
      return channel.post_send(c, tensor.raw(), stream);
    });
  };
  return start(ex, {.name = "send", .reads = {tensor}, .writes = {}, .kind = OpKind::communication}, group.channel(),
               make, {tensor});
}

Pending recv(Exec& ex, const Group& group, const Tensor& tensor, int peer, int lane, Where where) {
  check_message(Op::recv, group, tensor, peer, lane);
  Call call = make_call(Op::recv, tensor, where);
  call.root = peer;
  call.lane = lane;
  const auto make = [&channel = group.channel(), call, tensor](Exec& runs, Stream stream) {
    return communicate(runs, channel, call, tensor.bytes(), [&channel, tensor, stream](const Call& c) {
      return channel.post_recv(c, tensor.raw(), stream);
    });
  };
  return start(ex, {.name = "recv", .reads = {}, .writes = {tensor}, .kind = OpKind::communication}, group.channel(),
               make, {tensor});
}

}  // namespace megalith::comm
