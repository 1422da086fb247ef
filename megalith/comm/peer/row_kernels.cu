// Longer than 500 lines: gathers and sums of rows share rings of copies, shares of warps and places.
#include <algorithm>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "megalith/comm/peer/bulk_copy.cuh"
#include "megalith/comm/peer/device_barrier.cuh"
#include "megalith/comm/peer/row_kernels.h"
#include "megalith/tensor/cuda/check.h"
#include "megalith/tensor/cuda/dispatch.cuh"
#include "megalith/tensor/cuda/gpu_attribute.h"
#include "megalith/tensor/cuda/load_kernels.h"
#include "megalith/tensor/cuda/shared_limit.h"

// Kernels of row collectives. A CTA begins when all members' kernels have begun (DeviceBarrier), then reads rows of
// their matrices. Bulk copies bring rows into rings of shared memory, one ring per warp, so that each CTA has up to 192
// KiB in flight. Rows that are no multiples of 16 bytes, or lie at other addresses, are read by ordinary loads.

namespace megalith::comm {
namespace {

constexpr int kThreads = 512, kLanes = 32, kWarps = kThreads / kLanes;
constexpr int kVectorBytes = 16;

/// A ring of kStages buffers for each warp, and behind them a buffer of zeros.
template <int kStageBytes, int kStages>
struct Rings {
  static constexpr int kBytes = kStageBytes, kCount = kStages;
  static constexpr int kSharedBytes = (kWarps * kStages + 1) * kStageBytes;
};
/// An item is a part of a row. A gather's is larger, a sum's is held in registers.
using GatherRings = Rings<4096, 3>;
using SumRings = Rings<2048, 6>;

/// Rows of all members, as a kernel sees them. Lies in shared memory.
struct Sources {
  const std::byte* of_members[kMaxSummed];

  /// Called by all threads. Returns the alignment that all matrices have, at most kVectorBytes.
  __device__ int find(const BarrierArrival& arrival, int members) {
    const auto member = static_cast<int>(threadIdx.x);
    std::uintptr_t bits = kVectorBytes;
    if (member < members) {
      of_members[member] = arrival.symmetric(member);
      bits |= reinterpret_cast<std::uintptr_t>(of_members[member]);
    }
    int alignment = kVectorBytes;
    for (int wanted = kVectorBytes; wanted > 1; wanted /= 2) {
      if (__syncthreads_or(static_cast<int>((bits & static_cast<std::uintptr_t>(wanted / 2)) != 0)) != 0)
        alignment = wanted / 2;
    }
    return alignment;
  }
};

struct Matrices {
  int members = 0;
  Index rows = 0;       ///< of each member's
  Index row_bytes = 0;  ///< multiple of the element
  std::byte* out = nullptr;
  Index out_rows = 0;

  /// That of all rows, if all members' matrices have `alignment`.
  __device__ int common_alignment(int alignment) const {
    const auto own = static_cast<std::uintptr_t>(row_bytes) | reinterpret_cast<std::uintptr_t>(out);
    while ((own & static_cast<std::uintptr_t>(alignment - 1)) != 0) alignment /= 2;
    return alignment;
  }
  __device__ bool has(int2 place) const { return place.x >= 0 && place.x < members && place.y >= 0 && place.y < rows; }
  __device__ const std::byte* at(const Sources& sources, int2 place) const {
    return sources.of_members[place.x] + place.y * row_bytes;
  }
};

__device__ Index clamped(Index value, Index least, Index most) { return min(max(value, least), most); }

/// This warp's, of all warps of the kernel.
__device__ Index warp_number() { return Index{blockIdx.x} * kWarps + threadIdx.x / kLanes; }
__device__ Index num_warps() { return Index{gridDim.x} * kWarps; }
__device__ int lane_number() { return static_cast<int>(threadIdx.x) % kLanes; }

/// The parts of rows that this warp takes: every num_warps()-th.
struct Share {
  Index parts_of_row = 0, count = 0;

  __device__ Share(Index rows, Index row_bytes, int part_bytes)
      : parts_of_row((row_bytes + part_bytes - 1) / part_bytes) {
    const Index items = rows * parts_of_row, first = warp_number();
    count = first < items ? (items - first - 1) / num_warps() + 1 : 0;
  }
  __device__ Index item(Index k) const { return warp_number() + k * num_warps(); }
  __device__ Index row(Index k) const { return item(k) / parts_of_row; }
  __device__ Index part(Index k) const { return item(k) % parts_of_row; }
  /// The warp's last part of the rows up to `row`; -1: it has none.
  __device__ Index last_up_to(Index row) const {
    const Index items = (row + 1) * parts_of_row, first = warp_number();
    return items > first ? (items - first - 1) / num_warps() : -1;
  }
};

/// The parts of a warp's share, one after the other, without divisions.
struct PartCursor {
  Index left, row, part;  ///< left: of the share, from this one on
  Index parts_of_row, row_step, part_step;

  __device__ explicit PartCursor(const Share& share)
      : left(share.count),
        row(warp_number() / share.parts_of_row),
        part(warp_number() % share.parts_of_row),
        parts_of_row(share.parts_of_row),
        row_step(num_warps() / share.parts_of_row),
        part_step(num_warps() % share.parts_of_row) {}
  __device__ void next() {
    --left;
    row += row_step;
    part += part_step;
    if (part < parts_of_row) return;
    part -= parts_of_row;
    ++row;
  }
};

/// One warp's ring.
template <class R>
struct Ring {
  std::byte* memory;
  bulk::Arrivals* arrivals;

  /// Called by all threads of the CTA.
  __device__ Ring(std::byte* shared, bulk::Arrivals (*of_warps)[R::kCount])
      : memory(shared + threadIdx.x / kLanes * R::kCount * R::kBytes), arrivals(of_warps[threadIdx.x / kLanes]) {
    if (lane_number() < R::kCount) bulk::init(arrivals[lane_number()]);
    std::byte* const zeros = shared + kWarps * R::kCount * R::kBytes;
    for (int i = static_cast<int>(threadIdx.x); i < R::kBytes / kVectorBytes; i += kThreads)
      reinterpret_cast<uint4*>(zeros)[i] = make_uint4(0, 0, 0, 0);
    bulk::fence_shared();
    bulk::fence_global();
    __syncthreads();
  }
  __device__ std::byte* stage(int place) const { return memory + place * R::kBytes; }
  /// By one lane: the stage's next phase ends when these bytes are there.
  __device__ void load(int place, const std::byte* from, unsigned bytes) const {
    bulk::arrive(arrivals[place], bytes);
    if (bytes > 0) bulk::load(stage(place), from, bytes, arrivals[place]);
  }
  __device__ void wait(int place, unsigned parity) const { bulk::wait(arrivals[place], parity); }
};

// ---- Gathers ----

struct Gather {
  DeviceBarrier barrier;
  Matrices matrices;
  const std::int32_t* counts = nullptr;
  const int2* sources = nullptr;
  const std::int32_t* begin = nullptr;
  const std::int32_t* wants = nullptr;
  Index max_pulls = 0, max_wants = 0;

  __device__ Index pulls() const { return clamped(counts[0], 0, max_pulls); }
  __device__ Index end() const { return clamped(counts[1], 0, max_wants); }
  /// The first of what pull i is wanted for.
  __device__ Index first_want(Index i) const { return clamped(begin[i], 0, end()); }
  /// Row of the result; null if there is none.
  __device__ std::byte* row_of_result(Index row) const {
    return row >= 0 && row < matrices.out_rows ? matrices.out + row * matrices.row_bytes : nullptr;
  }
  __device__ std::byte* target(Index want) const { return row_of_result(wants[want]); }
};

/// The parts that a warp gathers. Every look into a list takes most of a microsecond, so places and rows are looked up
/// one part before their copy begins, and rows of the result while it is on its way.
class GatherFlights {
 public:
  using R = GatherRings;

  __device__ GatherFlights(const Gather& args, const Sources& sources, const Ring<R>& ring, const Share& share)
      : args_(args), sources_(sources), ring_(ring), all_wants_(args.end()), at_(share), pull_(look_up()) {}

  __device__ unsigned bytes_of(Index part) const {
    return static_cast<unsigned>(min(Index{R::kBytes}, args_.matrices.row_bytes - part * R::kBytes));
  }
  /// All lanes: the next part's copy into stage `place` begins, if there is one.
  __device__ void start(int place) {
    const Pull next = look_up();
    if (pull_.is_there) {
      const bool exists = args_.matrices.has(pull_.place);
      if (lane_number() == 0) {
        const std::byte* const from =
            exists ? args_.matrices.at(sources_, pull_.place) + pull_.part * R::kBytes : nullptr;
        ring_.load(place, from, exists ? bytes_of(pull_.part) : 0);
      }
      Flight& flight = flights_[place];
      flight.part = pull_.part;
      flight.want = clamped(pull_.first, 0, all_wants_) + lane_number();
      flight.end = exists ? clamped(pull_.end, 0, all_wants_) : 0;
      flight.row = flight.want < flight.end ? args_.wants[flight.want] : -1;
    }
    pull_ = next;
  }
  /// Waits for the stage's part, and begins its copies to the rows that want it.
  __device__ void send(int place, unsigned parity) const {
    const Flight flight = flights_[place];
    ring_.wait(place, parity);
    Index row = flight.row;
    for (Index want = flight.want; want < flight.end;) {
      std::byte* const to = args_.row_of_result(row);
      if (to != nullptr) bulk::store(to + flight.part * R::kBytes, ring_.stage(place), bytes_of(flight.part));
      want += kLanes;
      if (want < flight.end) row = args_.wants[want];
    }
    bulk::commit_stores();
  }

 private:
  /// A part whose copy has not begun.
  struct Pull {
    bool is_there = false;
    Index part = 0;
    int2 place = {};
    std::int32_t first = 0, end = 0;  // of wants
  };
  /// One whose copy has.
  struct Flight {
    Index part = 0, want = 0, end = 0;  // want: the lane's first
    std::int32_t row = 0;               // of the result, which `want` names
  };

  __device__ Pull look_up() {
    if (at_.left <= 0) return {};
    const Pull pull{true, at_.part, args_.sources[at_.row], args_.begin[at_.row], args_.begin[at_.row + 1]};
    at_.next();
    return pull;
  }

  const Gather& args_;
  const Sources& sources_;
  const Ring<R>& ring_;
  Index all_wants_;
  PartCursor at_;
  Pull pull_;
  Flight flights_[R::kCount];
};

__device__ void gather_by_copies(const Gather& args, const Sources& sources, std::byte* shared) {
  using R = GatherRings;
  constexpr int kAhead = R::kCount - 1;  // one stage's copies to rows still read it
  __shared__ bulk::Arrivals arrivals[kWarps][R::kCount];
  const Ring<R> ring(shared, arrivals);
  const Index pulls = args.pulls();
  const Share share(pulls, args.matrices.row_bytes, R::kBytes);
  GatherFlights flights(args, sources, ring, share);
#pragma unroll
  for (int place = 0; place < kAhead; ++place) flights.start(place);
  unsigned parity = 0;
  for (Index k = 0; k < share.count; k += R::kCount, parity ^= 1u) {
#pragma unroll
    for (int place = 0; place < R::kCount; ++place) {
      if (k + place >= share.count) break;
      flights.send(place, parity);
      bulk::wait_for_reads<1>();  // those of the part before
      __syncwarp();
      flights.start((place + kAhead) % R::kCount);
    }
  }
  const std::byte* const zeros = shared + kWarps * R::kCount * R::kBytes;
  const Index first = args.first_want(pulls), rows = args.end() - first, parts = share.parts_of_row;
  for (Index i = warp_number() * kLanes + lane_number(); i < rows * parts; i += num_warps() * kLanes) {
    std::byte* const to = args.target(first + i / parts);
    if (to != nullptr) bulk::store(to + i % parts * R::kBytes, zeros, flights.bytes_of(i % parts));
  }
  bulk::commit_stores();
  bulk::wait_for_stores();
}

/// Neighbouring threads take neighbouring words of a row.
template <class Word>
__device__ void gather_by_loads(const Gather& args, const Sources& sources) {
  const Index words = args.matrices.row_bytes / static_cast<Index>(sizeof(Word)), pulls = args.pulls();
  const Index begin = blockIdx.x * Index{kThreads} + threadIdx.x, stride = Index{gridDim.x} * kThreads;
  const auto put = [&](Index want, Index word, Word value) {
    std::byte* const to = args.target(want);
    if (to != nullptr) reinterpret_cast<Word*>(to)[word] = value;
  };
  for (Index i = begin; i < pulls * words; i += stride) {
    const Index pull = i / words, word = i % words;
    const int2 place = args.sources[pull];
    if (!args.matrices.has(place)) continue;
    const Word value = reinterpret_cast<const Word*>(args.matrices.at(sources, place))[word];
    for (Index want = args.first_want(pull); want < args.first_want(pull + 1); ++want) put(want, word, value);
  }
  const Index first = args.first_want(pulls), rows = args.end() - first;
  for (Index i = begin; i < rows * words; i += stride) put(first + i / words, i % words, Word{});
}

/// In the widest words that the alignment of all rows allows.
__device__ void gather(const Gather& args, const Sources& sources, int alignment, std::byte* shared) {
  if (bulk::kHasCopies && alignment == kVectorBytes) return gather_by_copies(args, sources, shared);
  if (alignment >= 8) return gather_by_loads<std::uint64_t>(args, sources);
  if (alignment == 4) return gather_by_loads<std::uint32_t>(args, sources);
  if (alignment == 2) return gather_by_loads<std::uint16_t>(args, sources);
  gather_by_loads<std::uint8_t>(args, sources);
}

__global__ void __launch_bounds__(kThreads, 1) gather_rows_kernel(const __grid_constant__ Gather args) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ BarrierArrival arrival;
  __shared__ Sources sources;
  if (!arrival.begin(args.barrier)) return;
  const int alignment = args.matrices.common_alignment(sources.find(arrival, args.matrices.members));
  if (args.matrices.row_bytes > 0) gather(args, sources, alignment, shared);
  arrival.end(args.barrier);
}

// ---- Sums ----

template <class T>
using SumType = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
struct Sum {
  DeviceBarrier barrier;
  Matrices matrices;
  const std::int32_t* begin = nullptr;
  const int2* places = nullptr;
  const SumType<T>* weights = nullptr;  ///< null: all 1
  Index max_terms = 0;
  Write write = Write::overwrite;

  __device__ Index first_term(Index row) const { return clamped(begin[row], 0, max_terms); }
  /// Whether nothing is added to a row that keeps what it holds.
  __device__ bool keeps(Index row) const {
    return write == Write::accumulate && first_term(row) >= first_term(row + 1);
  }
  __device__ SumType<T> weight(Index term) const { return weights == nullptr ? SumType<T>{1} : weights[term]; }
};

__device__ float plus_product(float sum, float weight, float value) { return __fmaf_rn(weight, value, sum); }
__device__ double plus_product(double sum, double weight, double value) { return __fma_rn(weight, value, sum); }

template <class T>
struct alignas(kVectorBytes) Values {
  static constexpr int kCount = kVectorBytes / static_cast<int>(sizeof(T));
  T at[kCount];
};

/// The terms of the warp's parts of rows, in their order. Rows without terms are passed over at once.
template <class T>
struct TermCursor {
  Index k = -1, term = 0, end = 0;  ///< k: the part, Share::count after the last

  __device__ void seek(const Sum<T>& args, const Share& share) {
    while (k < share.count && term >= end) {
      if (++k == share.count) return;
      const Index row = share.row(k);
      term = args.first_term(row);
      end = args.first_term(row + 1);
      if (term >= end) k = share.last_up_to(row);
    }
  }
};

/// A lane holds every 32nd vector of the part.
template <class T>
struct PartialSums {
  static constexpr int kVectors = SumRings::kBytes / kVectorBytes / kLanes, kCount = Values<T>::kCount;
  SumType<T> at[kVectors][kCount];

  /// 0, or what the part of `row` holds.
  __device__ void begin(const std::byte* row, int vectors, Write write) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = v * kLanes + lane_number();
      const bool is_added_to = write == Write::accumulate && vector < vectors;
      const Values<T> values = is_added_to ? reinterpret_cast<const Values<T>*>(row)[vector] : Values<T>{};
#pragma unroll
      for (int i = 0; i < kCount; ++i) at[v][i] = is_added_to ? static_cast<SumType<T>>(values.at[i]) : SumType<T>{0};
    }
  }
  __device__ void add(const std::byte* row, int vectors, SumType<T> weight) {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = v * kLanes + lane_number();
      if (vector >= vectors) continue;
      const Values<T> values = reinterpret_cast<const Values<T>*>(row)[vector];
#pragma unroll
      for (int i = 0; i < kCount; ++i) at[v][i] = plus_product(at[v][i], weight, static_cast<SumType<T>>(values.at[i]));
    }
  }
  __device__ void store(std::byte* row, int vectors) const {
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      const int vector = v * kLanes + lane_number();
      if (vector >= vectors) continue;
      Values<T> result;
#pragma unroll
      for (int i = 0; i < kCount; ++i) result.at[i] = static_cast<T>(at[v][i]);
      reinterpret_cast<Values<T>*>(row)[vector] = result;
    }
  }
};

template <class T>
__device__ void sum_by_copies(const Sum<T>& args, const Sources& sources, std::byte* shared) {
  using R = SumRings;
  __shared__ bulk::Arrivals arrivals[kWarps][R::kCount];
  const Ring<R> ring(shared, arrivals);
  const Index row_bytes = args.matrices.row_bytes;
  const Share share(args.matrices.out_rows, row_bytes, R::kBytes);
  const auto bytes_of = [&](Index k) {
    return static_cast<int>(min(Index{R::kBytes}, row_bytes - share.part(k) * R::kBytes));
  };
  TermCursor<T> next;  // whose copy is started next
  int2 next_place = {};
  const auto look_up = [&] {
    next.seek(args, share);
    if (next.k < share.count) next_place = args.places[next.term];
  };
  look_up();
  const auto load = [&](int place) {
    if (next.k == share.count) return;
    const int2 from_place = next_place;
    const Index k = next.k;
    ++next.term;
    look_up();  // read while the copy begins
    if (lane_number() > 0) return;
    const bool exists = args.matrices.has(from_place);
    const std::byte* const from = exists ? args.matrices.at(sources, from_place) + share.part(k) * R::kBytes : nullptr;
    ring.load(place, from, exists ? static_cast<unsigned>(bytes_of(k)) : 0);
  };
  for (int place = 0; place < R::kCount; ++place) load(place);
  int place = 0;
  unsigned parity = 0;
  for (Index k = 0; k < share.count; ++k) {
    const Index row = share.row(k), end = args.first_term(row + 1);
    if (args.keeps(row)) {
      k = share.last_up_to(row);
      continue;
    }
    const int vectors = bytes_of(k) / kVectorBytes;
    PartialSums<T> sums;
    std::byte* const out = args.matrices.out + row * row_bytes + share.part(k) * R::kBytes;
    sums.begin(out, vectors, args.write);
    for (Index term = args.first_term(row); term < end; ++term) {
      const bool exists = args.matrices.has(args.places[term]);
      const SumType<T> weight = args.weight(term);
      ring.wait(place, parity);
      if (exists) sums.add(ring.stage(place), vectors, weight);
      __syncwarp();
      load(place);
      if (++place == R::kCount) place = 0, parity ^= 1u;
    }
    sums.store(out, vectors);
  }
}

template <class T>
__device__ void sum_by_loads(const Sum<T>& args, const Sources& sources) {
  const Index width = args.matrices.row_bytes / static_cast<Index>(sizeof(T));
  const Index stride = Index{gridDim.x} * kThreads;
  for (Index i = blockIdx.x * Index{kThreads} + threadIdx.x; i < args.matrices.out_rows * width; i += stride) {
    const Index row = i / width, end = args.first_term(row + 1);
    if (args.keeps(row)) continue;
    T& to = reinterpret_cast<T*>(args.matrices.out)[i];
    SumType<T> sum = args.write == Write::accumulate ? static_cast<SumType<T>>(to) : SumType<T>{0};
    for (Index term = args.first_term(row); term < end; ++term) {
      const int2 place = args.places[term];
      if (!args.matrices.has(place)) continue;
      const T value = reinterpret_cast<const T*>(args.matrices.at(sources, place))[i % width];
      sum = plus_product(sum, args.weight(term), static_cast<SumType<T>>(value));
    }
    to = static_cast<T>(sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 1) gather_sum_rows_kernel(const __grid_constant__ Sum<T> args) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ BarrierArrival arrival;
  __shared__ Sources sources;
  if (!arrival.begin(args.barrier)) return;
  const int alignment = args.matrices.common_alignment(sources.find(arrival, args.matrices.members));
  if (bulk::kHasCopies && alignment == kVectorBytes && args.matrices.row_bytes > 0) {
    sum_by_copies(args, sources, shared);
  } else {
    sum_by_loads(args, sources);
  }
  arrival.end(args.barrier);
}

// ---- Launches ----

template <class Args>
Matrices matrices_of(const DeviceBarrier& barrier, const Args& args) {
  return {.members = barrier.members,
          .rows = args.mine.dim(0),
          .row_bytes = args.mine.dim(1) * size_of(args.mine.dtype()),
          .out = static_cast<std::byte*>(args.out.raw()),
          .out_rows = args.out.dim(0)};
}

/// Whether the calling thread's GPU copies in bulk (bulk::kHasCopies in its code). Others use no shared memory, and may
/// not have as much.
bool has_copies() { return cuda::gpu_attribute(cudaDevAttrComputeCapabilityMajor) >= 9; }

template <class R>
int shared_bytes() {
  return has_copies() ? R::kSharedBytes : 0;
}

unsigned blocks_of(int ctas) { return static_cast<unsigned>(std::clamp(ctas, 1, kMaxRowCtas)); }

}  // namespace

void load_row_kernels() {
  cuda::load_kernels(gather_rows_kernel, gather_sum_rows_kernel<double>, gather_sum_rows_kernel<float>,
                     gather_sum_rows_kernel<__nv_bfloat16>, gather_sum_rows_kernel<__half>);
  if (!has_copies()) return;
  cuda::allow_shared_memory(gather_rows_kernel, GatherRings::kSharedBytes);
  cuda::allow_shared_memory(gather_sum_rows_kernel<double>, SumRings::kSharedBytes);
  cuda::allow_shared_memory(gather_sum_rows_kernel<float>, SumRings::kSharedBytes);
  cuda::allow_shared_memory(gather_sum_rows_kernel<__nv_bfloat16>, SumRings::kSharedBytes);
  cuda::allow_shared_memory(gather_sum_rows_kernel<__half>, SumRings::kSharedBytes);
}

void gather_rows_symmetric(Stream stream, const DeviceBarrier& barrier, const GatherRows& args, int ctas) {
  const RowPulls& pulls = args.pulls;
  const Gather kernel_args{.barrier = barrier,
                           .matrices = matrices_of(barrier, args),
                           .counts = pulls.counts.data<std::int32_t>(),
                           .sources = reinterpret_cast<const int2*>(pulls.sources.data<std::int32_t>()),
                           .begin = pulls.begin.data<std::int32_t>(),
                           .wants = pulls.wants.data<std::int32_t>(),
                           .max_pulls = pulls.sources.dim(0),
                           .max_wants = pulls.wants.dim(0)};
  gather_rows_kernel<<<blocks_of(ctas), kThreads, shared_bytes<GatherRings>(), cuda::native(stream)>>>(kernel_args);
  cuda::check(cudaGetLastError());
}

void gather_sum_rows_symmetric(Stream stream, const DeviceBarrier& barrier, const GatherSumRows& args, int ctas) {
  cuda::dispatch_number(args.mine.dtype(), [&]<class T>() {
    const Tensor& weights = args.sums.weights;
    const Sum<T> kernel_args{.barrier = barrier,
                             .matrices = matrices_of(barrier, args),
                             .begin = args.sums.begin.data<std::int32_t>(),
                             .places = reinterpret_cast<const int2*>(args.sums.places.data<std::int32_t>()),
                             .weights = weights ? weights.data<SumType<T>>() : nullptr,
                             .max_terms = args.sums.places.dim(0),
                             .write = args.write};
    gather_sum_rows_kernel<T>
        <<<blocks_of(ctas), kThreads, shared_bytes<SumRings>(), cuda::native(stream)>>>(kernel_args);
  });
  cuda::check(cudaGetLastError());
}

}  // namespace megalith::comm
