#include "tests/comm/peer_ranks.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/peer/peer_group.h"
#include "megalith/comm/peer/stream_signals.h"
#include "megalith/comm/silent_channel.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {
namespace {

class PeerChannel final : public SilentChannel {
 public:
  PeerChannel(Group host, std::string name, const GroupUse& use, PeerCalls calls)
      : SilentChannel(std::move(name), {host.world_ranks().begin(), host.world_ranks().end()}, host.rank()),
        calls_(calls),
        host_(std::move(host)),
        peers_(PeerGroup::connect(host_, use)),
        ready_(Device::cuda) {
    if (peers_ == nullptr) throw InternalError("[PeerChannel] these GPUs do not reach each other");
    for (std::size_t i = 0; i < kEvents; ++i) done_.emplace_back(Device::cuda);
  }

  Device device() const override { return Device::cuda; }
  int multiprocessors() const override { return SymmetricTransport::kMultiprocessors; }
  Ticket all_reduce(const Call& call, void* data, Stream stream) override {
    if (by_hosts(call)) {
      return on_hosts(call, stream, data, call.count, data, call.count,
                      [&](Exec& ex, const Tensor& all, const Tensor&) {
                        comm::all_reduce(ex, host_, all, call.reduce).wait(ex);
                        return all;
                      });
    }
    return run(call, stream, [&](Stream own) { peers_->all_reduce(call, data, own); });
  }
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override {
    if (by_hosts(call)) {
      return on_hosts(call, stream, in, call.count, out, call.count / size(),
                      [&](Exec& ex, const Tensor& from, const Tensor& to) {
                        comm::reduce_scatter(ex, host_, from, to, call.reduce).wait(ex);
                        return to;
                      });
    }
    return run(call, stream, [&](Stream own) { peers_->reduce_scatter(call, in, out, own); });
  }
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override {
    if (by_hosts(call)) {
      return on_hosts(call, stream, in, call.count, out, call.count * size(),
                      [&](Exec& ex, const Tensor& from, const Tensor& to) {
                        comm::all_gather(ex, host_, from, to).wait(ex);
                        return to;
                      });
    }
    return run(call, stream, [&](Stream own) { peers_->all_gather(call, in, out, own); });
  }
  Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) override {
    if (!by_hosts(call)) return SilentChannel::all_to_all(call, in, out, stream);
    const auto sum = [](std::span<const Index> bytes) { return std::accumulate(bytes.begin(), bytes.end(), Index{0}); };
    const std::vector<Index> sends(in.bytes.begin(), in.bytes.end()), receives(out.bytes.begin(), out.bytes.end());
    Call of_bytes = call;
    of_bytes.dtype = DType::u8;
    return on_hosts(of_bytes, stream, in.data, sum(sends), out.data, sum(receives),
                    [&](Exec& ex, const Tensor& from, const Tensor& to) {
                      comm::all_to_all(ex, host_, from, sends, to, receives).wait(ex);
                      return to;
                    });
  }
  Ticket broadcast(const Call& call, void* data, Stream stream) override {
    if (!by_hosts(call)) return SilentChannel::broadcast(call, data, stream);
    return on_hosts(call, stream, data, call.count, data, call.count, [&](Exec& ex, const Tensor& all, const Tensor&) {
      comm::broadcast(ex, host_, all, call.root).wait(ex);
      return all;
    });
  }
  Ticket gather_rows(const Call& call, const GatherRows& args, Stream stream) override {
    return run(call, stream, [&](Stream own) { peers_->gather_rows(args, own); });
  }
  Ticket gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) override {
    return run(call, stream, [&](Stream own) { peers_->gather_sum_rows(args, own); });
  }
  Ticket post_send(const Call& call, const void* data, Stream stream) override {
    if (calls_ == PeerCalls::all_in_turn) return send_by_host(call, data, stream);
    return run(call, stream, [&](Stream own) { peers_->send(call, data, own); });
  }
  Ticket post_recv(const Call& call, void* data, Stream stream) override {
    if (calls_ == PeerCalls::all_in_turn) return receive_by_host(call, data, stream);
    return run(call, stream, [&](Stream own) { peers_->recv(call, data, own); });
  }
  void barrier(const Call&, Stream stream) override {
    reached_.record(stream);
    reached_.wait();
    Exec host;
    comm::barrier(host, host_);
  }
  /// Outside of a capture the host waits, too. A queue whose stream waits takes a slice of the GPU's time, and ranks
  /// that share a GPU have many.
  void wait(Ticket ticket, Stream stream) override {
    if (const auto message = messages_.find(ticket.id); message != messages_.end()) {
      finish_by_host(message->second, stream);
      messages_.erase(message);
      return;
    }
    const Event& done = done_[static_cast<std::size_t>(ticket.id) % kEvents];
    if (!is_capturing(stream)) done.wait();
    done.hold(stream);
  }

 private:
  /// Collectives go by one stream, messages by one for each peer, direction and lane.
  struct Line {
    Op op;
    std::int32_t peer, lane;
    OwnedStream stream;
  };
  Stream line_of(const Call& call) {
    const Op op = is_message(call.op) ? call.op : Op::barrier;
    for (const Line& line : lines_) {
      if (line.op == op && line.peer == call.root && line.lane == call.lane) return line.stream.get();
    }
    const Stream made = lines_.emplace_back(op, call.root, call.lane, OwnedStream(Device::cuda)).stream.get();
    // CUDA makes a stream under its lock, for which a rank would wait while the kernels of others wait for it.
    if (!is_message(call.op)) meet();
    return made;
  }

  template <class Submit>
  Ticket run(const Call& call, Stream caller, const Submit& submit) {
    if (!peers_->takes(call)) throw InternalError(where(call.op) + "not a call that a PeerGroup takes");
    const Stream own = line_of(call);
    ready_.record(caller);
    ready_.hold(own);
    if (calls_ == PeerCalls::all_in_turn) {
      ready_.wait();
      meet();
    }
    submit(own);
    Event& done = next_done();
    done.record(own);
    if (calls_ == PeerCalls::all_in_turn) {
      done.wait();
      meet();
    }
    return {calls_made_ - 1, call.entry};
  }
  void meet() {
    Exec ex;
    comm::barrier(ex, host_);
  }

  /// That of the next call; the call that had it is over. All are made before any call, so that no rank makes one while
  /// others wait for it.
  Event& next_done() {
    Event& done = done_[static_cast<std::size_t>(calls_made_) % kEvents];
    ++calls_made_;
    return done;
  }

  bool by_hosts(const Call& call) const { return calls_ == PeerCalls::all_in_turn && !peers_->takes(call); }
  /// The result of work(exec, in, out) in host memory goes to `out`. Numbers of the call's type.
  template <class Work>
  Ticket on_hosts(const Call& call, Stream stream, const void* in, Index in_count, void* out, Index out_count,
                  const Work& work) {
    Exec ex;
    const Tensor from = ex.tensor({in_count}, call.dtype), to = ex.tensor({out_count}, call.dtype);
    device::synchronize(Device::cuda, stream);
    device::copy(Device::cuda, from.raw(), in, from.bytes(), stream);
    device::synchronize(Device::cuda, stream);
    const Tensor result = work(ex, from, to);
    device::copy(Device::cuda, out, result.raw(), result.bytes(), stream);
    device::synchronize(Device::cuda, stream);
    next_done().record(stream);
    return {calls_made_ - 1, call.entry};
  }

  /// A message between host memories, of which one end is a copy.
  struct HostMessage {
    Exec ex;
    Tensor tensor;
    Pending pending;
    void* to = nullptr;  ///< where a received message goes
  };
  HostMessage& new_message(const Call& call) {
    HostMessage& message = messages_[calls_made_++];
    message.tensor = message.ex.tensor({call.count}, call.dtype);
    return message;
  }
  Ticket last_ticket(const Call& call) const { return {calls_made_ - 1, call.entry}; }
  Ticket send_by_host(const Call& call, const void* data, Stream stream) {
    HostMessage& message = new_message(call);
    device::synchronize(Device::cuda, stream);
    device::copy(Device::cuda, message.tensor.raw(), data, message.tensor.bytes(), stream);
    device::synchronize(Device::cuda, stream);
    message.pending = comm::send(message.ex, host_, message.tensor, call.root, call.lane);
    return last_ticket(call);
  }
  Ticket receive_by_host(const Call& call, void* data, Stream) {
    HostMessage& message = new_message(call);
    message.to = data;
    message.pending = comm::recv(message.ex, host_, message.tensor, call.root, call.lane);
    return last_ticket(call);
  }
  static void finish_by_host(HostMessage& message, Stream stream) {
    message.pending.wait(message.ex);
    if (message.to == nullptr) return;
    device::synchronize(Device::cuda, stream);
    device::copy(Device::cuda, message.to, message.tensor.raw(), message.tensor.bytes(), stream);
    device::synchronize(Device::cuda, stream);
  }

  PeerCalls calls_;
  Group host_;
  std::map<std::int64_t, HostMessage> messages_;  // by ticket
  std::unique_ptr<PeerGroup> peers_;
  static constexpr std::size_t kEvents = 32;  ///< more than calls of a group are in flight
  Event ready_;
  Event reached_{Device::cuda};  ///< kept: CUDA destroys one only when no other rank waits with its lock held
  std::deque<Event> done_;
  std::int64_t calls_made_ = 0;
  std::deque<Line> lines_;
};

class PeerWorld final : public World {
 public:
  PeerWorld(World& host, PeerCalls calls) : host_(host), calls_(calls) { adopt_world(host.all()); }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string_view transport() const override { return "peers"; }
  void abort(const std::string& reason) override { host_.abort(reason); }

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int, const GroupUse& use) override {
    const Group host = host_.group("bootstrap-" + name, std::move(world_ranks));
    return std::make_shared<PeerChannel>(host, std::move(name), use, calls_);
  }

 private:
  World& host_;
  PeerCalls calls_;
};

}  // namespace

void run_peer_ranks(int size, const std::function<void(World&)>& body, InReach in_reach, PeerCalls calls) {
  std::vector<int> gpus(in_reach == InReach::tensors ? static_cast<std::size_t>(device::num_gpus()) : 0);
  std::iota(gpus.begin(), gpus.end(), 0);
  const auto rank = [&](World& host) {
    device::use(Device::cuda, host.rank() % device::num_gpus(), gpus);
    PeerWorld world(host, calls);
    try {
      body(world);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", host.rank(), error.what());
      throw;
    }
  };
  run_ranks(size, rank, {.timeout_s = 30});
}

}  // namespace megalith::comm
