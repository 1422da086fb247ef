#pragma once
#include <string>
#include <vector>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// Knows its rank and size and cannot communicate: of groups of one rank, which never need to, and of dry worlds, in
/// which steps are recorded and nothing may execute.
class SilentChannel final : public Channel {
 public:
  using Channel::Channel;
  void all_reduce(const Call& call, void* data) override;
  void reduce_scatter(const Call& call, const void* in, void* out) override;
  void all_gather(const Call& call, const void* in, void* out) override;
  void all_to_all(const Call& call, const void* in, std::span<const Index> send_bytes, void* out,
                  std::span<const Index> recv_bytes) override;
  void broadcast(const Call& call, void* data) override;
  void barrier(const Call& call) override;
  Ticket post_send(const Call& call, const void* data) override;
  Ticket post_recv(const Call& call, void* data) override;
  void wait(Ticket ticket) override;
  void cancel(Ticket) noexcept override {}

 private:
  [[noreturn]] void refuse(Op op) const;
};

}  // namespace megalith::comm
