#pragma once
#include <vector>

#include <cuda_runtime.h>
#include <nccl.h>

#include "megalith/comm/channel.h"
#include "megalith/comm/nccl/staged_rows.h"
#include "megalith/comm/peer/rows_alone.h"
#include "megalith/tensor/memory.h"

namespace megalith::comm {

/// Memory whose contents are written anew by each user. It grows to half more than is asked for. What it had before
/// stays until the end: freeing a GPU's memory waits for all of its work, also for calls that wait for this rank.
class GrowingMemory {
 public:
  explicit GrowingMemory(Side side) : side_(side) {}
  std::byte* at_least(Index bytes);

 private:
  Side side_;
  std::vector<Buffer> taken_;  // the last is in use
};

/// The row collectives of a group of GPUs by messages of NCCL, for members that do not reach each other's tensors
/// (otherwise PeerGroup reads rows where they lie). The steps of a call:
///  1. The host waits for the lists, and checks them.
///  2. Members exchange how many rows each asks of each other. The host waits for these counts.
///  3. Members send each other the numbers of the rows that they ask for.
///  4. Each packs the rows that others ask for, and its own, and sends the former.
///  5. PeerGroup's kernels (peer/row_kernels.h) read the rows that have come, so the bits are theirs.
/// A graph cannot contain the call, because the host reads lists and counts.
///
/// Volume per rank, out and in: each row once for every member that asks for it, and 8 bytes more. Memory: the rows
/// that a call sends, reads of its own matrix, and receives (StagedRows), half as much again, and 8 to 12 bytes for
/// each of them and for each term. It grows with the calls and is kept (GrowingMemory). A step's plan does not include
/// it.
class NcclRows {
 public:
  /// Loads kernels. `channel` gives the rank, waits for the host (Channel::host_wait), and outlives this. `ctas`: those
  /// that a kernel may hold.
  NcclRows(Channel& channel, int ctas);
  /// Submit the call to `stream`, the channel's own. Throw CollectiveError, before anything is sent, for lists that
  /// name what does not exist. Return NCCL's first status that is not success.
  ncclResult_t read(const Call& call, const GatherRows& args, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t read(const Call& call, const GatherSumRows& args, ncclComm_t comm, cudaStream_t stream);

 private:
  enum class Items : std::uint8_t { requests, rows };

  template <class Args>
  ncclResult_t read_by_messages(const Call& call, const Args& args, ncclComm_t comm, cudaStream_t stream);
  void host_wait(cudaStream_t stream);
  /// The same call with its lists in host memory.
  GatherRows on_host(const GatherRows& args, cudaStream_t stream);
  GatherSumRows on_host(const GatherSumRows& args, cudaStream_t stream);
  ncclResult_t exchange_counts(ncclComm_t comm, cudaStream_t stream);
  /// The lists of the staging matrix. `requests`: for each of its rows which row of whose matrix it is.
  struct Lists {
    std::byte* requests = nullptr;
    RowPulls packs;  ///< of the given and own rows
    Tensor places;   ///< StagedRows::places()
  };
  Lists upload_lists(cudaStream_t stream);
  ncclResult_t exchange(Items items, std::byte* staged, Index item_bytes, ncclComm_t comm, cudaStream_t stream) const;
  void place(const GatherRows& args, const Tensor& rows, const Tensor& places, cudaStream_t stream) const;
  void place(const GatherSumRows& args, const Tensor& rows, const Tensor& places, cudaStream_t stream) const;

  Channel& channel_;
  int ctas_;
  StagedRows plan_;
  Event reached_;
  RowsAlone alone_;
  Buffer counts_, counts_on_host_;  // own, then those of all members
  GrowingMemory lists_on_host_{Side::host}, uploads_{Side::host}, lists_{Side::device}, rows_{Side::device};
};

}  // namespace megalith::comm
