#include "megalith/comm/nccl/nccl_channel.h"

#include <array>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/nccl/check.h"
#include "megalith/comm/nccl/watchdog.h"
#include "megalith/comm/peer/row_kernels.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/tensor/cuda/check.h"

namespace megalith::comm {
namespace {

ncclDataType_t native(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i64:
      return ncclInt64;
    case DType::i32:
      return ncclInt32;
    case DType::u64:
      return ncclUint64;
    case DType::u8:
      return ncclUint8;
  }
  throw InternalError("[nccl] a dtype without a counterpart");
}

ncclRedOp_t native(Reduce reduce) {
  switch (reduce) {
    case Reduce::sum:
      return ncclSum;
    case Reduce::max:
      return ncclMax;
    case Reduce::min:
      return ncclMin;
  }
  throw InternalError("[nccl] a reduction without a counterpart");
}

std::size_t unsigned_of(Index count) { return static_cast<std::size_t>(count); }

/// CTAs of a posted message. They hold their SMs until the peer arrives. PP 2 of 1.2B, microbatch 2 on H200s: 363, 369,
/// 357, 403 ms per step with 1, 2, 4, 16.
constexpr int kMessageBlocks = 4;

constexpr std::int64_t kMaxCommStreams =
    16;  // a ticket's id is the call's number in its stream * kMaxCommStreams + the stream

std::size_t stream_in(Ticket ticket) { return static_cast<std::size_t>(ticket.id % kMaxCommStreams); }
std::uint64_t number_in(Ticket ticket) { return static_cast<std::uint64_t>(ticket.id / kMaxCommStreams); }

/// The next member on the ring and the previous one. Each of two members has one neighbour.
std::vector<int> neighbours_of(int member, int size) {
  const int next = (member + 1) % size, previous = (member + size - 1) % size;
  return next == previous ? std::vector<int>{next} : std::vector<int>{next, previous};
}

}  // namespace

/// The ids with which the ranks of a communicator find each other. The first member makes that of the group, the sender
/// those of messages.
struct NcclChannel::Ids {
  using OfLanes = std::array<ncclUniqueId, kMessageLanes>;
  ncclUniqueId group;
  std::array<OfLanes, 2> to_neighbour;

  /// The ids of the lanes from `sender`, whose ids these are.
  OfLanes& to(int sender, int receiver, int size) {
    return to_neighbour[neighbours_of(sender, size)[0] == receiver ? 0 : 1];
  }
};

NcclChannel::NcclChannel(Watchdog& watchdog, const Group& host, std::string name, const GroupUse& use)
    : Channel(std::move(name), {host.world_ranks().begin(), host.world_ranks().end()}, host.rank()),
      watchdog_(watchdog),
      host_(host),
      use_(use),
      deferred_(kMaxCommStreams),
      scratch_(kMaxCommStreams, Device::cuda) {
  comm_streams_.emplace_back(CommStreamKey{},
                             use.cta_limit == CtaLimit::few ? kCommunicationThreadBlocks : CommStream::kAnyCtas);
  if (use.messages == Messages::none) return;
  for (const int peer : neighbours_of(rank(), size())) {
    for (int lane = 0; lane < kMessageLanes; ++lane) {
      comm_streams_.emplace_back(CommStreamKey{Op::send, peer, lane}, kMessageBlocks);
      comm_streams_.emplace_back(CommStreamKey{Op::recv, peer, lane}, kMessageBlocks);
    }
  }
}

/// The ids of all members, in member order.
std::vector<NcclChannel::Ids> NcclChannel::exchange_ids() const {
  Ids own{};
  if (rank() == 0) check(ncclGetUniqueId(&own.group), "[nccl] ncclGetUniqueId");
  for (const CommStream& comm_stream : comm_streams_) {
    const auto [op, peer, lane] = comm_stream.key();
    if (op != Op::send) continue;
    check(ncclGetUniqueId(&own.to(rank(), peer, size())[unsigned_of(lane)]), "[nccl] ncclGetUniqueId");
  }
  return gather_values(host_, own);
}

ncclResult_t NcclChannel::make_communicator(CommStream& comm_stream, std::vector<Ids>& ids) const {
  const auto [op, peer, lane] = comm_stream.key();
  if (op == Op::barrier) return comm_stream.connect(ids[0].group, size(), rank());
  const int sender = op == Op::send ? rank() : peer, receiver = op == Op::send ? peer : rank();
  return comm_stream.connect(ids[unsigned_of(sender)].to(sender, receiver, size())[unsigned_of(lane)], 2,
                             op == Op::send ? 0 : 1);
}

/// Moves a byte. NCCL connects two GPUs when they first communicate, which blocks the host until both do so. Without
/// this a first send would wait for its receive.
ncclResult_t NcclChannel::move_byte(const CommStream& comm_stream, std::byte* byte) const {
  switch (comm_stream.key().op) {
    case Op::send:
      return ncclSend(byte, 1, ncclUint8, 1, comm_stream.comm(), comm_stream.stream());
    case Op::recv:
      return ncclRecv(byte, 1, ncclUint8, 0, comm_stream.comm(), comm_stream.stream());
    default:
      return ncclAllReduce(byte, byte, 1, ncclUint8, ncclSum, comm_stream.comm(), comm_stream.stream());
  }
}

void NcclChannel::connect() {
  std::vector<Ids> ids = exchange_ids();
  Call call;  // not booked: it belongs to the transport, so that all transports count and hash the same calls
  call.file = "the making of the group";
  for (CommStream& comm_stream : comm_streams_) comm_stream.begin(call, {comm_stream.stream()});
  const auto for_each_stream = [&](auto&& f) {
    const ncclResult_t status = grouped([&] {
      for (CommStream& comm_stream : comm_streams_) {
        if (const ncclResult_t failed = f(comm_stream); failed != ncclSuccess) return failed;
      }
      return ncclSuccess;
    });
    expect_success(call, status);
  };
  for_each_stream([&](CommStream& comm_stream) { return make_communicator(comm_stream, ids); });
  std::byte* byte = scratch_.data();
  for_each_stream([&](CommStream& comm_stream) { return move_byte(comm_stream, byte++); });
  for (CommStream& comm_stream : comm_streams_) comm_stream.submitted(0);
  for (CommStream& comm_stream : comm_streams_) cuda::check(cudaStreamSynchronize(comm_stream.stream()));
  for (CommStream& comm_stream : comm_streams_) comm_stream.forget(0);
  watchdog_.check_health();
  if (use_.transport == Transport::copy_engines) peers_ = PeerGroup::connect(host_, use_);
  if (!takes_peers({.op = Op::gather_rows}))
    rows_ =
        std::make_unique<NcclRows>(*this, use_.cta_limit == CtaLimit::few ? kCommunicationThreadBlocks : kMaxRowCtas);
  connected_ = true;
}

/// Throws the reason for which the watchdog has aborted the communicators, if it has; otherwise NCCL's error.
void NcclChannel::expect_success(const Call& call, ncclResult_t status) const {
  if (status == ncclSuccess) return;
  watchdog_.check_health();
  check(status, where(call.op) + "NCCL");
}

int NcclChannel::multiprocessors() const {
  return peers_ == nullptr ? kCommunicationMultiprocessors : SymmetricTransport::kMultiprocessors;
}

Stream NcclChannel::stream_of(Ticket ticket) const { return {comm_streams_[stream_in(ticket)].stream()}; }

void NcclChannel::release() noexcept {
  if (connected_ && peers_ != nullptr) peers_->release();
}

void NcclChannel::look(double timeout_s) {
  for (CommStream& comm_stream : comm_streams_) {
    ncclResult_t state = ncclSuccess;
    if (connected_) check(ncclCommGetAsyncError(comm_stream.comm(), &state), "[nccl] ncclCommGetAsyncError");
    if (state != ncclInProgress) check(state, str("[nccl] group ", name()));
    const std::optional<CommStream::Overdue> overdue = comm_stream.overdue(timeout_s);
    if (!overdue) continue;
    RankList others;
    for (int member = 0; member < size(); ++member) {
      const int peer = comm_stream.key().peer;
      if (member == peer || (peer < 0 && member != rank())) others.add(world_rank(member));
    }
    throw_hang(overdue->call, overdue->waited_s, others.text());
  }
}

bool NcclChannel::takes_peers(const Call& call) const { return peers_ != nullptr && peers_->takes(call); }

std::string_view NcclChannel::transport_of(const Call& call, Stream stream) const {
  return takes_peers(call) ? name_of(peers_->transport_of(call, stream)) : Channel::transport_of(call, stream);
}

/// Makes a call by submit(communicator, stream) in the order of its stream, after the present point of `caller`.
template <class Submit>
Ticket NcclChannel::run(std::size_t index, const Call& call, Stream caller, Submit&& submit) {
  watchdog_.check_health();
  CommStream& comm_stream = comm_streams_[index];
  const std::uint64_t number = comm_stream.begin(call, caller);
  expect_success(call, submit(comm_stream.comm(), comm_stream.stream()));
  comm_stream.submitted(number);
  return {static_cast<std::int64_t>(number) * kMaxCommStreams + static_cast<std::int64_t>(index), call.entry};
}

Ticket NcclChannel::all_reduce(const Call& call, void* data, Stream stream) {
  return run(0, call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    if (takes_peers(call)) {
      peers_->all_reduce(call, data, {own});
      return ncclSuccess;
    }
    return ncclAllReduce(data, data, unsigned_of(call.count), native(call.dtype), native(call.reduce), comm, own);
  });
}

Ticket NcclChannel::reduce_scatter(const Call& call, const void* in, void* out, Stream stream) {
  return run(0, call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    if (takes_peers(call)) {
      peers_->reduce_scatter(call, in, out, {own});
      return ncclSuccess;
    }
    return ncclReduceScatter(in, out, unsigned_of(call.count / size()), native(call.dtype), native(call.reduce), comm,
                             own);
  });
}

Ticket NcclChannel::all_gather(const Call& call, const void* in, void* out, Stream stream) {
  return run(0, call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    if (takes_peers(call)) {
      peers_->all_gather(call, in, out, {own});
      return ncclSuccess;
    }
    return ncclAllGather(in, out, unsigned_of(call.count), native(call.dtype), comm, own);
  });
}

Ticket NcclChannel::all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) {
  return run(0, call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    return grouped([&] {
      const auto* from = static_cast<const std::byte*>(in.data);
      auto* to = static_cast<std::byte*>(out.data);
      ncclResult_t status = ncclSuccess;
      for (int member = 0; member < size() && status == ncclSuccess; ++member) {
        const std::size_t sent = unsigned_of(in.bytes[unsigned_of(member)]);
        const std::size_t received = unsigned_of(out.bytes[unsigned_of(member)]);
        if (sent > 0) status = ncclSend(from, sent, ncclUint8, member, comm, own);
        if (received > 0 && status == ncclSuccess) status = ncclRecv(to, received, ncclUint8, member, comm, own);
        from += sent;
        to += received;
      }
      return status;
    });
  });
}

Ticket NcclChannel::broadcast(const Call& call, void* data, Stream stream) {
  return run(0, call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    return ncclBroadcast(data, data, unsigned_of(call.count), native(call.dtype), call.root, comm, own);
  });
}

void NcclChannel::barrier(const Call& call, Stream stream) {
  const Ticket ticket =
      run(0, call, stream, [&](ncclComm_t, cudaStream_t) { return move_byte(comm_streams_[0], scratch_.data()); });
  wait(ticket, stream);
}

template <class Args>
Ticket NcclChannel::read_rows(const Call& call, const Args& args, Stream stream) {
  if (is_capturing(stream)) {
    throw BackendError(str(where(call.op),
                           "no graph can contain this call, because the host waits for counts of rows between GPUs "
                           "that do not reach each other's tensors: use all_to_all with constant counts, run ranks as "
                           "threads of one process, or set graphs.mode = \"none\""));
  }
  return run(0, call, stream, [&](ncclComm_t comm, cudaStream_t own) { return rows_->read(call, args, comm, own); });
}

Ticket NcclChannel::gather_rows(const Call& call, const GatherRows& args, Stream stream) {
  if (!takes_peers(call)) return read_rows(call, args, stream);
  return run(0, call, stream, [&](ncclComm_t, cudaStream_t own) {
    peers_->gather_rows(args, {own});
    return ncclSuccess;
  });
}

Ticket NcclChannel::gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) {
  if (!takes_peers(call)) return read_rows(call, args, stream);
  return run(0, call, stream, [&](ncclComm_t, cudaStream_t own) {
    peers_->gather_sum_rows(args, {own});
    return ncclSuccess;
  });
}

std::size_t NcclChannel::stream_index(const Call& call) const {
  for (std::size_t index = 0; index < comm_streams_.size(); ++index) {
    if (comm_streams_[index].key() == CommStreamKey{call.op, call.root, call.lane}) return index;
  }
  throw BackendError(str(where(call.op), "member ", rank(), " and member ", call.root, ", lane ", call.lane,
                         ": on GPUs messages go between neighbours on the ring of members, on lanes 0 and 1, in groups "
                         "made with Messages::neighbours"));
}

Ticket NcclChannel::post_send(const Call& call, const void* data, Stream stream) {
  return run(stream_index(call), call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    if (call.count == 0) return ncclSuccess;
    if (takes_peers(call)) {
      peers_->send(call, data, {own});
      return ncclSuccess;
    }
    return ncclSend(data, unsigned_of(call.count), native(call.dtype), 1, comm, own);
  });
}

Ticket NcclChannel::post_recv(const Call& call, void* data, Stream stream) {
  const std::size_t index = stream_index(call);
  const bool defers = is_deferred(index, call, stream);
  const Ticket ticket = run(index, call, stream, [&](ncclComm_t comm, cudaStream_t own) {
    if (call.count == 0 || defers) return ncclSuccess;
    if (takes_peers(call)) {
      peers_->recv(call, data, {own});
      return ncclSuccess;
    }
    return ncclRecv(data, unsigned_of(call.count), native(call.dtype), 0, comm, own);
  });
  if (defers) deferred_[index].push_back({number_in(ticket), call, data});
  return ticket;
}

/// Whether a receive is submitted when it is waited for. Its sender must not wait for that, so deferred messages must
/// have room in the mailbox. If there is no room, the oldest are received from here on.
bool NcclChannel::is_deferred(std::size_t index, const Call& call, Stream stream) {
  if (call.count == 0 || !takes_peers(call) || !is_capturing(stream)) return false;
  Index pieces = MailboxTransport::pieces_of(call);
  for (const Deferred& deferred : deferred_[index]) pieces += MailboxTransport::pieces_of(deferred.call);
  for (; pieces > MailboxLayout::kSlots && !deferred_[index].empty(); receive_oldest(index, stream))
    pieces -= MailboxTransport::pieces_of(deferred_[index].front().call);
  return pieces <= MailboxLayout::kSlots;
}

/// Receives the oldest deferred messages, after the present point of `stream`.
void NcclChannel::receive_oldest(std::size_t index, Stream stream) {
  CommStream& comm_stream = comm_streams_[index];
  const Deferred& oldest = deferred_[index].front();
  comm_stream.follow(stream);
  peers_->recv(oldest.call, oldest.data, {comm_stream.stream()});
  comm_stream.submitted(oldest.number);
  deferred_[index].pop_front();
}

void NcclChannel::wait(Ticket ticket, Stream stream) {
  watchdog_.check_health();
  const std::size_t index = stream_in(ticket);
  while (!deferred_[index].empty() && deferred_[index].front().number <= number_in(ticket))
    receive_oldest(index, stream);
  comm_streams_[index].wait(number_in(ticket), stream);
}

void NcclChannel::meet_hosts() {
  Exec host;
  comm::barrier(host, host_);
}

void NcclChannel::host_wait(const Event& point) {
  struct Observed {
    Watchdog& watchdog;
    explicit Observed(Watchdog& w) : watchdog(w) { watchdog.begin_host_wait(); }
    ~Observed() { watchdog.end_host_wait(); }
  };
  {
    const Observed observed(watchdog_);
    point.wait();
  }
  watchdog_.check_health();
}

/// The memory is about to be freed, so everything that may still access it must end. NCCL can only end whole
/// communicators.
void NcclChannel::cancel(Ticket ticket) noexcept {
  std::erase_if(deferred_[stream_in(ticket)],
                [&](const Deferred& deferred) { return deferred.number == number_in(ticket); });
  if (!comm_streams_[stream_in(ticket)].forget(number_in(ticket))) watchdog_.give_up();
}

}  // namespace megalith::comm
