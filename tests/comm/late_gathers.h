#pragma once
#include <cstdint>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "megalith/comm/group.h"

namespace megalith::comm {

/// Forwards to a channel of a transport.
class ForwardingChannel : public Channel {
 public:
  explicit ForwardingChannel(const Group& group)
      : Channel(std::string(group.name()), {group.world_ranks().begin(), group.world_ranks().end()}, group.rank()),
        group_(group) {}

  Device device() const override { return inner().device(); }
  int multiprocessors() const override { return inner().multiprocessors(); }
  Stream stream_of(Ticket ticket) const override { return inner().stream_of(ticket); }
  Ticket all_reduce(const Call& call, void* data, Stream stream) override {
    return inner().all_reduce(call, data, stream);
  }
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override {
    return inner().reduce_scatter(call, in, out, stream);
  }
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override {
    return inner().all_gather(call, in, out, stream);
  }
  Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) override {
    return inner().all_to_all(call, in, out, stream);
  }
  Ticket broadcast(const Call& call, void* data, Stream stream) override {
    return inner().broadcast(call, data, stream);
  }
  void barrier(const Call& call, Stream stream) override { inner().barrier(call, stream); }
  Ticket post_send(const Call& call, const void* data, Stream stream) override {
    return inner().post_send(call, data, stream);
  }
  Ticket post_recv(const Call& call, void* data, Stream stream) override {
    return inner().post_recv(call, data, stream);
  }
  void wait(Ticket ticket, Stream stream) override { inner().wait(ticket, stream); }
  void cancel(Ticket ticket) noexcept override { inner().cancel(ticket); }

 protected:
  static constexpr std::int64_t kLate = std::int64_t{1} << 62;  ///< tickets of its own
  Channel& inner() const { return group_.channel(); }

 private:
  Group group_;
};

/// Gathers nothing before it is waited for: who reads before has what was there.
class LateGathers final : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  ~LateGathers() override { EXPECT_TRUE(late_.empty()) << late_.size() << " gathers were never awaited"; }
  Ticket all_gather(const Call& call, const void* in, void* out, Stream) override {
    late_.emplace(kLate + posted_, Late{call, in, out});
    return {kLate + posted_++, call.entry};
  }
  void wait(Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    const auto late = late_.extract(ticket.id);
    ASSERT_FALSE(late.empty()) << "a gather is awaited twice";
    const Late& gather = late.mapped();
    const Ticket gathered = inner().all_gather(gather.call, gather.in, gather.out, stream);
    if (gathered.id >= 0) inner().wait(gathered, stream);
  }
  void cancel(Ticket ticket) noexcept override {
    if (late_.erase(ticket.id) == 0) inner().cancel(ticket);
  }

 private:
  struct Late {
    Call call;
    const void* in;
    void* out;
  };
  std::map<std::int64_t, Late> late_;
  std::int64_t posted_ = 0;
};

}  // namespace megalith::comm
