#include "apps/bench/clone_times.h"

#include <algorithm>
#include <ranges>
#include <string>

#include "megalith/comm/silent_channel.h"

namespace megalith::apps {

/// Forwards what moves rows of clones (nn/moe/clone_transport.h).
class CloneTimes::TimedChannel final : public comm::SilentChannel {
 public:
  TimedChannel(CloneTimes& times, const comm::Group& group)
      : SilentChannel(std::string(group.name()), {group.world_ranks().begin(), group.world_ranks().end()},
                      group.rank()),
        times_(times),
        group_(group) {}

  Device device() const override { return inner().device(); }
  int multiprocessors() const override { return inner().multiprocessors(); }
  bool sums_in_rank_order() const override { return inner().sums_in_rank_order(); }
  bool reads_rows() const override { return inner().reads_rows(); }
  Stream stream_of(comm::Ticket ticket) const override { return inner().stream_of(ticket); }
  void host_wait(const Event& point) override { inner().host_wait(point); }
  void cancel(comm::Ticket ticket) noexcept override { inner().cancel(ticket); }

  comm::Ticket gather_rows(const comm::Call& call, const comm::GatherRows& args, Stream stream) override {
    return timed(stream, [&] { return inner().gather_rows(call, args, stream); });
  }
  comm::Ticket gather_sum_rows(const comm::Call& call, const comm::GatherSumRows& args, Stream stream) override {
    return timed(stream, [&] { return inner().gather_sum_rows(call, args, stream); });
  }
  comm::Ticket reduce_scatter(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return timed(stream, [&] { return inner().reduce_scatter(call, in, out, stream); });
  }
  comm::Ticket all_gather(const comm::Call& call, const void* in, void* out, Stream stream) override {
    return timed(stream, [&] { return inner().all_gather(call, in, out, stream); });
  }
  comm::Ticket all_to_all(const comm::Call& call, const comm::Parts<const void>& in, const comm::Parts<void>& out,
                          Stream stream) override {
    return timed(stream, [&] { return inner().all_to_all(call, in, out, stream); });
  }

  void wait(comm::Ticket ticket, Stream stream) override {
    const auto is_this = [&](const Call& call) { return call.ticket == ticket.id && !call.is_waited_for; };
    const auto call = std::ranges::find_if(times_.calls_, is_this);
    if (call == times_.calls_.end()) return inner().wait(ticket, stream);
    call->is_waited_for = true;
    call->wait_begin.record(stream);
    inner().wait(ticket, stream);
    call->wait_end.record(stream);
  }

 private:
  comm::Channel& inner() const { return group_.channel(); }

  template <class Make>
  comm::Ticket timed(Stream stream, const Make& make) {
    const Device device = times_.device_;
    const auto point = [device] { return TimePoint(device); };
    Call& call = times_.calls_.emplace_back(Call{point(), point(), point(), point(), point()});
    call.posted.record(stream);
    const comm::Ticket ticket = make();
    const Stream own = ticket.id < 0 ? stream : inner().stream_of(ticket);
    call.done.record(own.handle == nullptr ? stream : own);
    call.returned.record(stream);
    call.ticket = ticket.id;
    return ticket;
  }

  CloneTimes& times_;
  comm::Group group_;
};

comm::Group CloneTimes::timed(const comm::Group& group) {
  return comm::Group(std::make_shared<TimedChannel>(*this, group));
}

void CloneTimes::clear() { calls_.clear(); }

CloneTimes::Sum CloneTimes::sum(std::size_t first, std::size_t end) const {
  Sum sum{.calls = end - first};
  for (std::size_t i = first; i < end; ++i) {
    const Call& call = calls_.at(i);
    sum.moving_s += call.done.seconds_since(call.posted);
    sum.exposed_s += call.returned.seconds_since(call.posted);
    if (call.is_waited_for) sum.exposed_s += call.wait_end.seconds_since(call.wait_begin);
  }
  return sum;
}

}  // namespace megalith::apps
