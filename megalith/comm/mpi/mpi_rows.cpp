// The row collectives of processes: by messages, or in memory that all members share.
#include <algorithm>
#include <cstring>

#include "megalith/base/host.h"
#include "megalith/comm/mpi/mpi_channel.h"
#include "megalith/comm/mpi/shared_memory.h"

namespace megalith::comm {

/// Every member tells the others which of their rows it wants.
void MpiChannel::exchange_lists(const Call& call, std::span<const RowPlace> places, Index row_bytes) {
  constexpr Index kMinBlock = 64;
  for (std::vector<std::int32_t>& list : reads_.wanted) list.clear();
  for (const RowPlace& place : places) {
    if (place.member != rank() && place.member != kNoMember)
      reads_.wanted[static_cast<std::size_t>(place.member)].push_back(place.row);
  }
  const Index fair = kRowsBytes / std::max<Index>(1, static_cast<Index>(places.size())) / kMinBlock * kMinBlock;
  const Index block = std::clamp(row_bytes, Index{1}, std::max(kMinBlock, fair));
  clear_legs();
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    const auto member = static_cast<std::size_t>(i);
    reads_.own[member] = {static_cast<Index>(reads_.wanted[member].size()), block};
    leg(i).out = reinterpret_cast<const std::byte*>(&reads_.own[member]);
    leg(i).in = reinterpret_cast<std::byte*>(&reads_.others[member]);
    leg(i).out_bytes = leg(i).in_bytes = sizeof(RowRequest);
  }
  reads_.own[static_cast<std::size_t>(rank())] = {0, block};
  exchange(call, kRequests);
  clear_legs();
  const auto bytes = [](Index rows) { return rows > 0 ? rows * static_cast<Index>(sizeof(std::int32_t)) : -1; };
  for (int i = 0; i < size(); ++i) {
    if (i == rank()) continue;
    const auto member = static_cast<std::size_t>(i);
    reads_.requested[member].resize(static_cast<std::size_t>(reads_.others[member].rows));
    leg(i).out = reinterpret_cast<const std::byte*>(reads_.wanted[member].data());
    leg(i).in = reinterpret_cast<std::byte*>(reads_.requested[member].data());
    leg(i).out_bytes = bytes(reads_.own[member].rows);
    leg(i).in_bytes = bytes(reads_.others[member].rows);
  }
  exchange(call, kLists);
}

/// Sends every member its next block of the rows that it wants, and receives this rank's.
void MpiChannel::exchange_blocks(const Call& call, const Tensor& mine, int round) {
  const Index row_bytes = mine.dim(1) * size_of(mine.dtype());
  const auto* const own = static_cast<const std::byte*>(mine.raw());
  const auto length = [&](const RowRequest& request) {
    return std::clamp<Index>(row_bytes - round * request.block_bytes, 0, request.block_bytes);
  };
  const auto grow = [](std::vector<std::byte>& memory, const std::vector<RowRequest>& requests) {
    Index bytes = 0;
    for (const RowRequest& request : requests) bytes += request.rows * request.block_bytes;
    memory.resize(std::max(memory.size(), static_cast<std::size_t>(bytes)));
    return memory.data();
  };
  std::byte* out = grow(reads_.sent, reads_.others);
  std::byte* in = grow(reads_.received, reads_.own);
  clear_legs();
  for (int i = 0; i < size(); ++i) {
    const auto member = static_cast<std::size_t>(i);
    const RowRequest &request = reads_.own[member], &other = reads_.others[member];
    if (const Index bytes = length(request); request.rows * bytes > 0) {
      leg(i).in = in;
      leg(i).in_bytes = request.rows * bytes;
      in += leg(i).in_bytes;
    }
    if (const Index bytes = length(other); other.rows * bytes > 0) {
      leg(i).out = out;
      leg(i).out_bytes = other.rows * bytes;
      for (const std::int32_t row : reads_.requested[member]) {
        std::memcpy(out, own + row * row_bytes + round * other.block_bytes, static_cast<std::size_t>(bytes));
        out += bytes;
      }
    }
  }
  exchange(call, kRounds + round);
}

/// Blocks of columns, so that staging stays small. A pair exchanges blocks of the size that the reader named.
template <class Args>
void MpiChannel::read_sent_rows(const Call& call, const Args& args) {
  const auto members = static_cast<std::size_t>(size());
  for (std::vector<RowRequest>* requests : {&reads_.own, &reads_.others}) requests->assign(members, {});
  for (auto* lists : {&reads_.wanted, &reads_.requested}) lists->resize(members);
  const Index item = size_of(args.mine.dtype()), row_bytes = args.mine.dim(1) * item;
  const std::span<const RowPlace> places = places_of(args);
  reads_.rows.resize(std::max(reads_.rows.size(), places.size()));
  exchange_lists(call, places, row_bytes);
  const Index block = reads_.own[static_cast<std::size_t>(rank())].block_bytes;
  const Index own_rounds = ceil_div(row_bytes, block);
  Index rounds = own_rounds;
  for (const RowRequest& request : reads_.others) {
    if (request.rows > 0) rounds = std::max(rounds, ceil_div(row_bytes, request.block_bytes));
  }
  for (Index round = 0; round < rounds; ++round) {
    exchange_blocks(call, args.mine, static_cast<int>(round));
    if (round >= own_rounds) continue;
    const Index begin = round * block, bytes = std::min(block, row_bytes - begin);
    for (int i = 0; i < size(); ++i) inputs_[static_cast<std::size_t>(i)] = leg(i).in;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const RowPlace& place = places[i];
      reads_.rows[i] = nullptr;
      if (place.member == kNoMember) continue;
      const std::byte*& next = inputs_[static_cast<std::size_t>(place.member)];
      const bool is_own = place.member == rank();
      reads_.rows[i] = is_own ? static_cast<const std::byte*>(args.mine.raw()) + place.row * row_bytes + begin : next;
      if (!is_own) next += bytes;
    }
    take_rows(args, std::span(reads_.rows).first(places.size()), {begin / item, bytes / item});
  }
}

/// Every member's value. Its size is not compared, so that of `part` kRequests compares the call.
template <class T>
std::vector<T> MpiChannel::exchange_values(const Call& call, int part, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(size()), own);
  for (int i = 0; i < size(); ++i) {
    leg(i).out = reinterpret_cast<const std::byte*>(&own);
    leg(i).in = reinterpret_cast<std::byte*>(&all[static_cast<std::size_t>(i)]);
    leg(i).out_bytes = leg(i).in_bytes = i == rank() ? -1 : Index{sizeof(T)};
  }
  exchange(call, part);
  return all;
}

/// Makes memory for matrices of so many rows. The first member names it by a random number; it has a name only until
/// all have opened it. If a member cannot, none has it, and messages carry such matrices from then on.
void MpiChannel::open_shared_rows(const Call& call, Index rows) {
  struct Offer {
    std::uint64_t word = 0, is_made = 0;
  };
  const SharedRows::Sizes sizes{size(), rows};
  const auto bytes = static_cast<std::size_t>(sizes.bytes());
  shared_rows_.reset();
  Offer own{random_word()};
  std::unique_ptr<SharedMemory> memory;
  if (rank() == 0) memory = SharedMemory::create(own.word, bytes);
  own.is_made = memory != nullptr ? 1 : 0;
  const Offer first = exchange_values(call, kRequests, own).front();
  if (rank() != 0 && first.is_made != 0) memory = SharedMemory::open(first.word, bytes);
  const std::vector<std::uint8_t> opened =
      exchange_values(call, kLists, static_cast<std::uint8_t>(memory != nullptr ? 1 : 0));
  if (memory != nullptr) memory->remove_name();
  if (std::ranges::count(opened, std::uint8_t{1}) == size()) {
    shared_rows_ = std::make_unique<SharedRows>(memory->memory(), sizes, rank());
  } else {
    max_shared_rows_ = rows - 1;
  }
}

/// Waits for all members. What they have written before is seen after it. (The thread sanitizer does not know C++'s
/// fences, which are these.)
void MpiChannel::meet(const Call& call, int part) {
  for (int i = 0; i < size(); ++i) leg(i).out_bytes = leg(i).in_bytes = i == rank() ? -1 : 0;
  __sync_synchronize();
  exchange(call, part);
  __sync_synchronize();
}

template <class Args>
void MpiChannel::read_shared_rows(const Call& call, const Args& args) {
  SharedRows& shared = *shared_rows_;
  const std::span<const RowPlace> places = places_of(args);
  const Index item = size_of(args.mine.dtype()), row_bytes = args.mine.dim(1) * item;
  const auto* const mine = static_cast<const std::byte*>(args.mine.raw());
  reads_.rows.resize(std::max(reads_.rows.size(), places.size()));
  shared.want(places, args.mine.dim(0));
  meet(call, kRequests);
  shared.plan(row_bytes);
  int round = kRounds;
  for (Index begin = 0; begin < row_bytes; begin += shared.block_bytes()) {
    const Index bytes = std::min(shared.block_bytes(), row_bytes - begin);
    if (shared.any()) {
      shared.give(mine, begin, bytes);
      meet(call, round++);
    }
    for (std::size_t i = 0; i < places.size(); ++i) {
      const RowPlace& place = places[i];
      const bool is_own = place.member == rank();
      reads_.rows[i] = is_own                      ? mine + place.row * row_bytes + begin
                       : place.member == kNoMember ? nullptr
                                                   : shared.block_of(place);
    }
    take_rows(args, std::span(reads_.rows).first(places.size()), {begin / item, bytes / item});
  }
}

bool MpiChannel::reads_rows() const {
  return std::ranges::all_of(world_ranks(), [&](int rank) { return link_.shares_memory_with(rank); });
}

template <class Args>
Ticket MpiChannel::read_rows(const Call& call, const Args& args) {
  const Index rows = args.mine.dim(0);
  const bool shares = reads_rows() && rows <= max_shared_rows_;
  if (shares && (shared_rows_ == nullptr || shared_rows_->max_rows() < rows)) open_shared_rows(call, rows);
  if (shares && shared_rows_ != nullptr && rows <= shared_rows_->max_rows()) {
    read_shared_rows(call, args);
  } else {
    read_sent_rows(call, args);
  }
  return {};
}

Ticket MpiChannel::gather_rows(const Call& call, const GatherRows& args, Stream) { return read_rows(call, args); }
Ticket MpiChannel::gather_sum_rows(const Call& call, const GatherSumRows& args, Stream) {
  return read_rows(call, args);
}

}  // namespace megalith::comm
