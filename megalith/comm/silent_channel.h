#pragma once
#include <string>
#include <vector>

#include "megalith/comm/channel.h"

namespace megalith::comm {

/// Knows its rank and size and cannot communicate. It is for groups of one rank, which never need to, and for dry
/// worlds, in which steps are recorded and nothing may execute. Tests derive channels from it that support some of the
/// calls.
class SilentChannel : public Channel {
 public:
  using Channel::Channel;
  bool reads_rows() const override { return true; }  // plans are those of rank threads
  Ticket all_reduce(const Call& call, void* data, Stream stream) override;
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) override;
  Ticket broadcast(const Call& call, void* data, Stream stream) override;
  void barrier(const Call& call, Stream stream) override;
  Ticket gather_rows(const Call& call, const GatherRows& args, Stream stream) override;
  Ticket gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) override;
  Ticket post_send(const Call& call, const void* data, Stream stream) override;
  Ticket post_recv(const Call& call, void* data, Stream stream) override;
  void wait(Ticket ticket, Stream stream) override;
  void cancel(Ticket) noexcept override {}

 private:
  [[noreturn]] void refuse(Op op) const;
};

}  // namespace megalith::comm
