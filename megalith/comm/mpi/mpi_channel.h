#pragma once
#include <limits>
#include <memory>
#include <vector>

#include "megalith/comm/channel.h"
#include "megalith/comm/mpi/shared_rows.h"
#include "megalith/comm/mpi/transfer.h"
#include "megalith/comm/ticket_table.h"

namespace megalith::comm {

/// A process's end of a group. Collectives are direct exchanges, summed in ascending group rank. Memory: 8 KiB per
/// member, and for reductions of more than Transfer::kSmallBytes a staging area of at most kPartBytes for each of the
/// others. Row collectives use memory that the members share (SharedRows) if they are processes of one host. Otherwise,
/// or where that has no room, messages carry the rows: their lists, and rows of at most kRowsBytes for this rank and as
/// much for each of the others (64 bytes of each row if a list is longer).
class MpiChannel final : public Channel {
 public:
  static constexpr Index kPartBytes = Index{1} << 20;  // bytes of one member's share that are reduced at a time
  static constexpr Index kRowsBytes = Index{4} << 20;  // bytes of rows that a member receives at a time

  MpiChannel(Link& link, std::string name, std::vector<int> world_ranks, int rank);

  /// Whether all members share memory: the same on all members, from World::share_memory() on.
  bool reads_rows() const override;
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
  void cancel(Ticket ticket) noexcept override;

 private:
  /// The bytes for one member and from it in an exchange. Bytes -1: nothing, not even a header.
  struct Leg {
    const std::byte* out = nullptr;
    std::byte* in = nullptr;
    Index out_bytes = -1, in_bytes = -1;
    Transfer sending, receiving;
  };
  struct Slot {
    Call call;
    Transfer transfer;
  };
  /// What a member reads of another in a row collective: so many of its rows, so many bytes of each at a time.
  struct RowRequest {
    Index rows = 0, block_bytes = 1;
  };
  /// The state of a row collective. Its memory grows to the longest lists.
  struct RowReads {
    std::vector<RowRequest> own, others;               // of and by each member
    std::vector<std::vector<std::int32_t>> wanted;     // by this rank: numbers of rows of each member
    std::vector<std::vector<std::int32_t>> requested;  // of this rank: numbers of its rows, by each member
    std::vector<std::byte> sent, received;             // blocks of rows, by member
    std::vector<const std::byte*> rows;                // addresses of the places' blocks, also those that are shared
  };

  /// Exchanges of a row collective: `part` of exchange(). Rounds of rows are numbered from kRounds on.
  static constexpr int kRequests = 0, kLists = 1, kRounds = 2;

  Leg& leg(int member) { return legs_[static_cast<std::size_t>(member)]; }
  void clear_legs();
  Header header_of(const Call& call, int part) const;
  void exchange(const Call& call, int part);
  bool advance_legs();
  /// Reduces this rank's input, and those of the others in the staging area, to `out`.
  void reduce_staged(const Call& call, const std::byte* own, std::byte* out, Index count);
  std::byte* staging(int member, Index bytes);
  void meet(const Call& call, int part);
  template <class T>
  std::vector<T> exchange_values(const Call& call, int part, const T& own);
  template <class Args>
  Ticket read_rows(const Call& call, const Args& args);
  template <class Args>
  void read_sent_rows(const Call& call, const Args& args);
  template <class Args>
  void read_shared_rows(const Call& call, const Args& args);
  void open_shared_rows(const Call& call, Index rows);
  void exchange_lists(const Call& call, std::span<const RowPlace> places, Index row_bytes);
  void exchange_blocks(const Call& call, const Tensor& mine, int round);
  template <class Done, class Awaited>
  void wait_for(const Call& call, Done&& done, Awaited&& awaited);
  Transfer::Lane lane_to(int peer, int lane, const Call& call) const;

  Link& link_;
  std::vector<Index> group_numbers_;  // per member: this group's number among those shared with it
  std::vector<Leg> legs_;
  std::vector<std::byte> staging_;
  RowReads reads_;
  std::unique_ptr<SharedRows> shared_rows_;  // made at the first call, and anew for a matrix of more rows
  Index max_shared_rows_ = std::numeric_limits<Index>::max();  // there is no room for more
  std::vector<const std::byte*> inputs_;
  TicketTable<Slot> in_flight_;
};

}  // namespace megalith::comm
