#include "megalith/comm/nccl/nccl_rows.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/nccl/check.h"

namespace megalith::comm {
namespace {

constexpr Index kNumberBytes = sizeof(std::int32_t), kPlaceBytes = sizeof(RowPlace);

void copy_if_any(void* to, const void* from, Index bytes, cudaStream_t stream) {
  if (bytes > 0) device::copy(Device::cuda, to, from, bytes, {stream});
}

/// Takes `list` to the next place of host memory.
Tensor download(Carver& host, const Tensor& list, cudaStream_t stream) {
  const Tensor there = host.next(list.shape(), list.dtype());
  copy_if_any(there.raw(), list.raw(), list.bytes(), stream);
  return there;
}

Index carved_bytes(std::initializer_list<Tensor> lists) {
  Carver sizes(nullptr);
  for (const Tensor& list : lists) sizes.next(list.shape(), list.dtype());
  return sizes.offset();
}

}  // namespace

std::byte* GrowingMemory::at_least(Index bytes) {
  if (taken_.empty() || taken_.back().bytes() < bytes)
    taken_.emplace_back(bytes + bytes / 2, Device::cuda, side_, Contents::undefined);
  return taken_.back().data();
}

NcclRows::NcclRows(Channel& channel, int ctas)
    : channel_(channel),
      ctas_(ctas),
      plan_(channel.rank(), channel.size()),
      reached_(Device::cuda),
      counts_(channel.size() * (channel.size() + Index{1}) * kNumberBytes, Device::cuda),
      counts_on_host_(counts_.bytes(), Device::cuda, Side::host) {}

ncclResult_t NcclRows::read(const Call& call, const GatherRows& args, ncclComm_t comm, cudaStream_t stream) {
  return read_by_messages(call, args, comm, stream);
}
ncclResult_t NcclRows::read(const Call& call, const GatherSumRows& args, ncclComm_t comm, cudaStream_t stream) {
  return read_by_messages(call, args, comm, stream);
}

template <class Args>
ncclResult_t NcclRows::read_by_messages(const Call& call, const Args& args, ncclComm_t comm, cudaStream_t stream) {
  const Args listed = on_host(args, stream);
  host_wait(stream);  // also for the call before this one, whose host memory is now free
  if (const std::string fault = fault_of_lists(channel_.size(), listed); !fault.empty())
    throw CollectiveError(channel_.where(call.op) + fault);
  plan_.ask(places_of(listed), args.mine.dim(0));
  if (const ncclResult_t status = exchange_counts(comm, stream); status != ncclSuccess) return status;
  if (plan_.staged() > std::numeric_limits<std::int32_t>::max())
    throw BackendError(str(channel_.where(call.op), "member ", channel_.rank(), " sends and receives ", plan_.staged(),
                           " rows: must be below 2^31 where NCCL carries them"));

  const Index width = args.mine.dim(1), row_bytes = width * size_of(args.mine.dtype());
  const Lists lists = upload_lists(stream);
  if (const ncclResult_t status = exchange(Items::requests, lists.requests, kPlaceBytes, comm, stream);
      status != ncclSuccess)
    return status;
  std::byte* const staged = rows_.at_least(plan_.staged() * row_bytes);
  const Tensor packed(staged, {plan_.packed(), width}, args.mine.dtype());
  place(GatherRows{.mine = args.mine, .pulls = lists.packs, .out = packed}, args.mine, lists.packs.sources, stream);
  if (const ncclResult_t status = exchange(Items::rows, staged, row_bytes, comm, stream); status != ncclSuccess)
    return status;
  const Tensor rows(staged + plan_.given() * row_bytes, {plan_.staged() - plan_.given(), width}, args.mine.dtype());
  place(args, rows, lists.places, stream);
  return ncclSuccess;
}

void NcclRows::host_wait(cudaStream_t stream) {
  reached_.record({stream});
  channel_.host_wait(reached_);
}

GatherRows NcclRows::on_host(const GatherRows& args, cudaStream_t stream) {
  const RowPulls& pulls = args.pulls;
  Carver host(lists_on_host_.at_least(carved_bytes({pulls.counts, pulls.sources, pulls.begin, pulls.wants})));
  GatherRows listed = args;
  for (Tensor RowPulls::*list : {&RowPulls::counts, &RowPulls::sources, &RowPulls::begin, &RowPulls::wants})
    listed.pulls.*list = download(host, pulls.*list, stream);
  return listed;
}

GatherSumRows NcclRows::on_host(const GatherSumRows& args, cudaStream_t stream) {
  Carver host(lists_on_host_.at_least(carved_bytes({args.sums.begin, args.sums.places})));
  GatherSumRows listed = args;
  for (Tensor RowSums::*list : {&RowSums::begin, &RowSums::places})
    listed.sums.*list = download(host, args.sums.*list, stream);
  return listed;
}

ncclResult_t NcclRows::exchange_counts(ncclComm_t comm, cudaStream_t stream) {
  const auto members = static_cast<std::size_t>(channel_.size());
  auto *const own = reinterpret_cast<std::int32_t*>(counts_.data()), *const all = own + members;
  auto* const host = reinterpret_cast<std::int32_t*>(counts_on_host_.data());
  std::ranges::copy(plan_.counts(), host);
  const Index bytes = channel_.size() * kNumberBytes;
  device::copy(Device::cuda, own, host, bytes, {stream});
  const ncclResult_t status = ncclAllGather(own, all, members, ncclInt32, comm, stream);
  if (status != ncclSuccess) return status;
  device::copy(Device::cuda, host + members, all, channel_.size() * bytes, {stream});
  host_wait(stream);
  plan_.answer({host + members, members * members});
  return ncclSuccess;
}

/// Numbers in device memory: places of the given rows, which members send, then what is uploaded: places of the own and
/// the received rows, those of the call's list, and the rest of `packs`, in which row i is pulled for row i.
NcclRows::Lists NcclRows::upload_lists(cudaStream_t stream) {
  const auto asked = plan_.asked(), places = plan_.places();
  const Index given = plan_.given(), packed = plan_.packed(), num_places = static_cast<Index>(places.size());
  const Index bytes = (plan_.staged() - given + num_places + 1) * kPlaceBytes + (packed + 1) * kNumberBytes;
  std::byte* const host = uploads_.at_least(bytes);
  auto* next = std::ranges::copy(asked, reinterpret_cast<RowPlace*>(host)).out;
  next = std::ranges::copy(places, next).out;
  *next++ = {static_cast<std::int32_t>(packed), static_cast<std::int32_t>(packed)};
  auto* const numbers = reinterpret_cast<std::int32_t*>(next);
  std::iota(numbers, numbers + packed + 1, 0);

  std::byte* const requests = lists_.at_least(given * kPlaceBytes + bytes);
  device::copy(Device::cuda, requests + given * kPlaceBytes, host, bytes, {stream});
  std::byte* const list = requests + plan_.staged() * kPlaceBytes;
  std::byte* const counts = list + num_places * kPlaceBytes;
  const Tensor begin(counts + kPlaceBytes, {packed + 1}, DType::i32);
  return {.requests = requests,
          .packs = {.counts = Tensor(counts, {2}, DType::i32),
                    .sources = Tensor(requests, {packed, 2}, DType::i32),
                    .begin = begin,
                    .wants = Tensor(begin.raw(), {packed}, DType::i32)},
          .places = Tensor(list, {num_places, 2}, DType::i32)};
}

/// Requests go from the received rows of their staging matrix to the given ones of the other's, and rows come back.
ncclResult_t NcclRows::exchange(Items items, std::byte* staged, Index item_bytes, ncclComm_t comm,
                                cudaStream_t stream) const {
  return grouped([&] {
    ncclResult_t status = ncclSuccess;
    for (int member = 0; member < channel_.size() && status == ncclSuccess; ++member) {
      StagedRange from = plan_.received_from(member), to = plan_.given_to(member);
      if (items == Items::rows) std::swap(from, to);
      const auto sent = static_cast<std::size_t>(from.count * item_bytes);
      const auto received = static_cast<std::size_t>(to.count * item_bytes);
      if (sent > 0) status = ncclSend(staged + from.begin * item_bytes, sent, ncclUint8, member, comm, stream);
      if (received > 0 && status == ncclSuccess)
        status = ncclRecv(staged + to.begin * item_bytes, received, ncclUint8, member, comm, stream);
    }
    return status;
  });
}

void NcclRows::place(const GatherRows& args, const Tensor& rows, const Tensor& places, cudaStream_t stream) const {
  if (args.out.numel() == 0) return;
  GatherRows here = args;
  here.mine = rows;
  here.pulls.sources = places;
  alone_.gather_rows({stream}, here, ctas_);
}

void NcclRows::place(const GatherSumRows& args, const Tensor& rows, const Tensor& places, cudaStream_t stream) const {
  if (args.out.numel() == 0) return;
  GatherSumRows here = args;
  here.mine = rows;
  here.sums.places = places;
  alone_.gather_sum_rows({stream}, here, ctas_);
}

}  // namespace megalith::comm
