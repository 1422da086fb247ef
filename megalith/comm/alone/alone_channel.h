#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/alone/alone_world.h"
#include "megalith/comm/peer/rows_alone.h"
#include "megalith/comm/ticket_table.h"
#include "megalith/tensor/memory.h"

namespace megalith::comm {

/// An end of a group whose other members do not exist (alone_world.h). On a GPU its calls run in a stream of its own.
class AloneChannel final : public Channel {
 public:
  /// `messages`: on a GPU a group without them receives none.
  AloneChannel(std::string name, std::vector<int> world_ranks, int rank, Device device, const AloneLinks& links,
               Messages messages);

  Device device() const override { return device_; }
  int multiprocessors() const override;
  bool reads_rows() const override { return device_ == Device::cpu || gpu_rows_ != nullptr; }
  Stream stream_of(Ticket) const override { return stream_.get(); }
  Ticket all_reduce(const Call& call, void* data, Stream stream) override;
  Ticket reduce_scatter(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_gather(const Call& call, const void* in, void* out, Stream stream) override;
  Ticket all_to_all(const Call& call, const Parts<const void>& in, const Parts<void>& out, Stream stream) override;
  Ticket broadcast(const Call& call, void* data, Stream stream) override;
  void barrier(const Call&, Stream) override {}
  Ticket gather_rows(const Call& call, const GatherRows& args, Stream stream) override;
  Ticket gather_sum_rows(const Call& call, const GatherSumRows& args, Stream stream) override;
  Ticket post_send(const Call&, const void*, Stream) override { return {}; }
  Ticket post_recv(const Call& call, void* data, Stream stream) override;
  void wait(Ticket ticket, Stream stream) override;
  void cancel(Ticket ticket) noexcept override;

 private:
  /// Runs work(own stream) behind the present point of `caller`, then holds the stream until `bytes` have crossed the
  /// links.
  template <class Work>
  Ticket run(const Call& call, Stream caller, Index bytes, Work&& work);
  void copy(void* to, const void* from, Index bytes, Stream stream) const;
  template <class Args>
  Ticket read_rows(const Call& call, const Args& args, Stream stream);
  void make_received();
  /// The part of the others in `bytes` of all members.
  Index of_others(Index bytes) const { return bytes / size() * (size() - 1); }

  Device device_;
  AloneLinks links_;
  OwnedStream stream_;
  Event ready_;
  TicketTable<std::optional<Event>> in_flight_;
  std::unique_ptr<RowsAlone> gpu_rows_;
  Buffer received_;  ///< what receives give, again and again
  std::vector<const std::byte*> rows_;
};

}  // namespace megalith::comm
