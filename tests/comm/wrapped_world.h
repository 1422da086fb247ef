#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Forwards to a channel of a transport.
class ForwardingChannel : public Channel {
 public:
  explicit ForwardingChannel(const Group& group)
      : Channel(std::string(group.name()), {group.world_ranks().begin(), group.world_ranks().end()}, group.rank()),
        group_(group) {}

  Device device() const override { return inner().device(); }
  int multiprocessors() const override { return inner().multiprocessors(); }
  bool sums_in_rank_order() const override { return inner().sums_in_rank_order(); }
  bool reads_rows() const override { return inner().reads_rows(); }
  Stream stream_of(Ticket ticket) const override { return inner().stream_of(ticket); }
  std::string_view transport_of(const Call& call, Stream stream) const override {
    return inner().transport_of(call, stream);
  }
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
  Ticket gather_rows(const Call& call, const GatherRows& args, Stream stream) override {
    return inner().gather_rows(call, args, stream);
  }
  Ticket gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) override {
    return inner().gather_sum_rows(call, args, stream);
  }
  Ticket post_send(const Call& call, const void* data, Stream stream) override {
    return inner().post_send(call, data, stream);
  }
  Ticket post_recv(const Call& call, void* data, Stream stream) override {
    return inner().post_recv(call, data, stream);
  }
  void wait(Ticket ticket, Stream stream) override { inner().wait(ticket, stream); }
  void meet_hosts() override { inner().meet_hosts(); }
  void host_wait(const Event& point) override { inner().host_wait(point); }
  void cancel(Ticket ticket) noexcept override { inner().cancel(ticket); }

 protected:
  static constexpr std::int64_t kLate = std::int64_t{1} << 62;  ///< tickets of its own
  Channel& inner() const { return group_.channel(); }

 private:
  Group group_;
};

/// Another world, whose groups' channels are each within a WrappingChannel(group).
template <class WrappingChannel>
class WrappedWorld final : public World {
 public:
  explicit WrappedWorld(World& world) : world_(world) { adopt_world(world.all()); }
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::string_view transport() const override { return world_.transport(); }
  void abort(const std::string& reason) override { world_.abort(reason); }
  std::string failure() const override { return world_.failure(); }
  void check_health() override { world_.check_health(); }
  Index device_bytes() const override { return world_.device_bytes(); }

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> ranks, int, const GroupUse& use) override {
    return std::make_shared<WrappingChannel>(world_.group(std::move(name), std::move(ranks), use));
  }

 private:
  void give_up() noexcept override { world_.give_up(); }
  void add(Stream stream) override { world_.add(stream); }
  void remove(Stream stream) noexcept override { world_.remove(stream); }
  void begin_host_wait() override { world_.begin_host_wait(); }
  void end_host_wait() noexcept override { world_.end_host_wait(); }

  World& world_;
};

}  // namespace megalith::comm
