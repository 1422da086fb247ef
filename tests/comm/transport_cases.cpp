// Longer than 500 lines: every case of a transport that threads, processes and GPUs share, one after the other.
#include "tests/comm/transport_cases.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "megalith/base/clock.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"

#include "tests/comm/row_cases.h"

namespace megalith::comm {
namespace {

constexpr Index kCounts[] = {0, 1, 7, 1000, 100003};
constexpr Reduce kReduces[] = {Reduce::sum, Reduce::max, Reduce::min};

template <class... Parts>
void require(bool holds, const Parts&... parts) {
  if (!holds) throw std::runtime_error(str(parts...));
}

std::uint64_t random_word(int rank, Index i, std::uint64_t salt = 0) {
  return mix64(mix64(static_cast<std::uint64_t>(rank) * 1000003u + salt) + static_cast<std::uint64_t>(i));
}

/// A value of mixed sign and magnitude, so that the order of a sum shows in its last bits.
template <class T>
T random_value(int rank, Index i) {
  const std::uint64_t word = random_word(rank, i);
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(word);
  } else {
    const double fraction = static_cast<double>(word >> 11) * 0x1p-53 - 0.5;
    return static_cast<T>(static_cast<float>(std::ldexp(fraction, static_cast<int>(word % 12))));
  }
}

/// Elements of a dtype on the host, and in the memory of a device from put() to get(). On a CPU that is the same.
template <class T>
struct Values {
  explicit Values(Index count, DType as = dtype_of<T>) : values(static_cast<std::size_t>(count)), dtype(as) {}
  Tensor put(Exec& ex) {
    const auto bytes = static_cast<Index>(values.size() * sizeof(T));
    const Tensor here(values.data(), {bytes / size_of(dtype)}, dtype);
    if (ex.device() == Device::cpu) return here;
    there = ex.tensor(here.shape(), dtype);
    ex.copy(there.raw(), here.raw(), bytes);
    return there;
  }
  void get(Exec& ex) {
    if (there) ex.copy(values.data(), there.raw(), there.bytes());
    ex.synchronize();
  }
  T& operator[](Index i) { return values[static_cast<std::size_t>(i)]; }
  std::vector<T> values;
  DType dtype;
  Tensor there;
};

template <class T>
Values<T> random_values(int rank, Index count) {
  Values<T> made(count);
  for (Index i = 0; i < count; ++i) made[i] = random_value<T>(rank, i);
  return made;
}

/// What sums are taken in.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>, float, T>;

/// What the reduction of element i over `ranks`, in this order, must give to the bit on a CPU.
template <class T>
T expected_value(Reduce reduce, std::span<const int> ranks, Index i) {
  using Sum = SumOf<T>;
  Sum sum = static_cast<Sum>(random_value<T>(ranks[0], i));
  for (const int rank : ranks.subspan(1)) {
    const Sum value = static_cast<Sum>(random_value<T>(rank, i));
    if (reduce == Reduce::max) {
      sum = std::max(sum, value);
    } else if (reduce == Reduce::min) {
      sum = std::min(sum, value);
    } else if constexpr (std::is_integral_v<T>) {
      sum = static_cast<T>(static_cast<std::uint64_t>(sum) + static_cast<std::uint64_t>(value));
    } else {
      sum = sum + value;
    }
  }
  return static_cast<T>(sum);
}

template <class T>
bool same_bits(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Whether `value` is the reduction of element i over `ranks`. NCCL adds in an order of its own and rounds after every
/// addition, so n terms may differ by n roundings of the sum of their magnitudes: twice that is allowed.
template <class T>
bool is_reduction(Device device, const T& value, Reduce reduce, std::span<const int> ranks, Index i) {
  const T expected = expected_value<T>(reduce, ranks, i);
  if (device == Device::cpu || reduce != Reduce::sum || std::is_integral_v<T>) return same_bits(value, expected);
  const auto real = [](const T& x) { return static_cast<double>(static_cast<SumOf<T>>(x)); };
  const double epsilon = std::is_same_v<T, double>    ? 0x1p-52
                         : std::is_same_v<T, float>   ? 0x1p-23
                         : std::is_same_v<T, float16> ? 0x1p-10
                                                      : 0x1p-7;
  double magnitude = 0;
  for (const int rank : ranks) magnitude += std::abs(real(random_value<T>(rank, i)));
  return std::abs(real(value) - real(expected)) <= static_cast<double>(ranks.size()) * epsilon * magnitude;
}

template <class T>
void all_reduce_matches(Exec& ex, const Group& group, int own, Index count,
                        std::span<const Reduce> reduces = kReduces) {
  for (const Reduce reduce : reduces) {
    Values<T> values = random_values<T>(own, count);
    all_reduce(ex, group, values.put(ex), reduce).wait(ex);
    values.get(ex);
    for (Index i = 0; i < count; ++i) {
      require(is_reduction(ex.device(), values[i], reduce, group.world_ranks(), i), "all_reduce ", name_of(reduce), ' ',
              name_of(dtype_of<T>), " x ", count, ": element ", i);
    }
  }
}

template <class T>
void reduce_scatter_matches(Exec& ex, const Group& group, int own, Index part,
                            std::span<const Reduce> reduces = kReduces) {
  for (const Reduce reduce : reduces) {
    const Index begin = part * group.rank();
    Values<T> in = random_values<T>(own, part * group.size());
    const Values<T> before = in;
    Values<T> out(part);
    const Tensor all = in.put(ex);
    reduce_scatter(ex, group, all, out.put(ex), reduce).wait(ex);
    in.get(ex);
    out.get(ex);
    for (Index i = 0; i < part; ++i) {
      require(is_reduction(ex.device(), out[i], reduce, group.world_ranks(), begin + i), "reduce_scatter ",
              name_of(reduce), ' ', name_of(dtype_of<T>), " x ", part, ": element ", i);
    }
    require(part == 0 || std::memcmp(before.values.data(), in.values.data(), in.values.size() * sizeof(T)) == 0,
            "reduce_scatter changed its input");
    reduce_scatter(ex, group, all, all.rows(begin, part), reduce).wait(ex);
    in.get(ex);
    for (Index i = 0; i < part; ++i) {
      require(is_reduction(ex.device(), in[begin + i], reduce, group.world_ranks(), begin + i),
              "reduce_scatter into its own part: element ", i);
    }
  }
}

template <class T>
void reductions_of(World& world) {
  Exec ex(device_of(world));
  for (const Index count : kCounts) {
    all_reduce_matches<T>(ex, everyone(world), world.rank(), count);
    reduce_scatter_matches<T>(ex, everyone(world), world.rank(), count);
  }
}

void reductions(World& world) {
  reductions_of<double>(world);
  reductions_of<float>(world);
  reductions_of<bfloat16>(world);
  reductions_of<float16>(world);
  reductions_of<std::int64_t>(world);
  reductions_of<std::int32_t>(world);
  reductions_of<std::uint64_t>(world);
  reductions_of<std::uint8_t>(world);
}

/// Shares of more than 1 MiB, which MPI exchanges in parts.
void long_reductions(World& world) {
  Exec ex(device_of(world));
  constexpr Reduce kSum[] = {Reduce::sum};
  all_reduce_matches<float>(ex, everyone(world), world.rank(), 270001 * world.size() + 5, kSum);
  reduce_scatter_matches<double>(ex, everyone(world), world.rank(), 140001, kSum);
}

void nan_is_kept(World& world) {
  Exec ex(device_of(world));
  const std::span<const Reduce> all = kReduces;
  for (const Reduce reduce : ex.device() == Device::cpu ? all : all.first(1)) {  // NCCL's max and min lose a NaN
    for (int sick = 0; sick < world.size(); ++sick) {
      Values<float> values(3);
      if (world.rank() == sick) values[1] = std::numeric_limits<float>::quiet_NaN();
      all_reduce(ex, everyone(world), values.put(ex), reduce).wait(ex);
      values.get(ex);
      require(std::isnan(values[1]) && values[0] == 0 && values[2] == 0, name_of(reduce), " lost the NaN of ", sick);
    }
  }
}

/// Raw bytes under a dtype: the operations that only move.
struct Bytes : Values<std::uint8_t> {
  Bytes(Index elements, DType type) : Values(elements * size_of(type), type) {}
  void fill(int rank) {
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<std::uint8_t>(random_word(rank, static_cast<Index>(i)));
  }
  bool is_of(int rank, std::size_t from, std::size_t length) const {
    for (std::size_t i = 0; i < length; ++i) {
      if (values[from + i] != static_cast<std::uint8_t>(random_word(rank, static_cast<Index>(i)))) return false;
    }
    return true;
  }
};

void moves_of(World& world, DType dtype, Index count) {
  Exec ex(device_of(world));
  const Group all = everyone(world);
  const std::string what = str(name_of(dtype), " x ", count);
  Bytes own(count, dtype), gathered(count * world.size(), dtype);
  own.fill(world.rank());
  all_gather(ex, all, own.put(ex), gathered.put(ex)).wait(ex);
  gathered.get(ex);
  const std::size_t bytes = own.values.size();
  for (int rank = 0; rank < world.size(); ++rank) {
    require(gathered.is_of(rank, static_cast<std::size_t>(rank) * bytes, bytes), "all_gather " + what);
  }
  Bytes in_place(count * world.size(), dtype);
  std::ranges::copy(own.values, in_place.values.begin() + world.rank() * static_cast<std::ptrdiff_t>(bytes));
  const Tensor whole = in_place.put(ex);
  all_gather(ex, all, whole.rows(count * world.rank(), count), whole).wait(ex);
  in_place.get(ex);
  require(in_place.values == gathered.values, "all_gather in place " + what);
  for (int root = 0; root < world.size(); ++root) {
    own.fill(world.rank());
    broadcast(ex, all, own.put(ex), root).wait(ex);
    own.get(ex);
    require(own.is_of(root, 0, bytes), "broadcast from ", root, ' ', what);
  }
}

void moves(World& world) {
  Exec ex(device_of(world));
  for (const DType dtype :
       {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i64, DType::i32, DType::u64, DType::u8}) {
    for (const Index count : kCounts) moves_of(world, dtype, count);
    barrier(ex, everyone(world));
  }
}

/// Rows that `from` sends to `to`: some none, some many.
Index rows_between(int from, int to, int scale) { return (from * 5 + to * 3) % 4 * scale; }

void all_to_all_uneven(World& world) {
  Exec ex(device_of(world));
  const Index width = 3;
  for (const int scale : {0, 1, 37, 5000}) {
    std::vector<Index> sent, received;
    for (int peer = 0; peer < world.size(); ++peer) {
      sent.push_back(rows_between(world.rank(), peer, scale));
      received.push_back(rows_between(peer, world.rank(), scale));
    }
    const Index rows_out = std::accumulate(sent.begin(), sent.end(), Index{0});
    const Index rows_in = std::accumulate(received.begin(), received.end(), Index{0});
    Values<double> in(rows_out * width), out(rows_in * width);
    Index at = 0;
    for (int peer = 0; peer < world.size(); ++peer) {
      for (Index i = 0; i < sent[static_cast<std::size_t>(peer)] * width; ++i) {
        in[at++] = world.rank() * 1e6 + peer * 1e5 + static_cast<double>(i);
      }
    }
    all_to_all(ex, everyone(world), in.put(ex).reshaped({rows_out, width}), sent,
               out.put(ex).reshaped({rows_in, width}), received)
        .wait(ex);
    out.get(ex);
    at = 0;
    for (int peer = 0; peer < world.size(); ++peer) {
      for (Index i = 0; i < received[static_cast<std::size_t>(peer)] * width; ++i) {
        require(out[at++] == peer * 1e6 + world.rank() * 1e5 + static_cast<double>(i), "all_to_all from ", peer);
      }
    }
  }
}

/// Groups in odd orders that overlap: all reversed, neighbours, even and odd ranks.
void overlapping_groups(World& world) {
  Exec ex(device_of(world));
  const int n = world.size(), r = world.rank();
  std::vector<std::vector<int>> lists;
  std::vector<int> reversed;
  for (int rank = n; rank-- > 0;) reversed.push_back(rank);
  lists.push_back(reversed);
  for (int rank = 0; rank + 1 < n; ++rank) lists.push_back({rank + 1, rank});
  for (const int parity : {0, 1}) {
    std::vector<int> list;
    for (int rank = parity; rank < n; rank += 2)
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2), rank);
    if (!list.empty()) lists.push_back(list);
  }
  for (int rank = 0; rank < n; ++rank) lists.push_back({rank});
  std::vector<Group> groups;
  for (const auto& list : lists) {
    if (std::find(list.begin(), list.end(), r) != list.end()) groups.push_back(world.group("odd", list));
  }
  for (int round = 0; round < 20; ++round) {
    for (const Group& group : groups) {
      Values<std::int64_t> value(1);
      value[0] = r;
      all_reduce(ex, group, value.put(ex), Reduce::sum).wait(ex);
      value.get(ex);
      const auto members = group.world_ranks();
      require(value[0] == std::accumulate(members.begin(), members.end(), Index{0}), "sum of rank numbers");
      if (round == 0) all_reduce_matches<float>(ex, group, r, 1000);
      if (round == 0) reduce_scatter_matches<float>(ex, group, r, 33);
    }
  }
}

/// Messages in the memory of a device, all made before the first is sent.
template <class T>
std::vector<Tensor> put_all(Exec& ex, std::vector<Values<T>>& messages) {
  std::vector<Tensor> tensors;
  for (Values<T>& each : messages) tensors.push_back(each.put(ex));
  return tensors;
}

/// Every rank sends to its neighbour on `lanes` lanes; receives are posted in another order, some before and some
/// after.
void order_of_lanes(World& world, int lanes) {
  if (world.size() == 1) return;
  Exec ex(device_of(world));
  const Group all = everyone(world);
  const int n = world.size(), r = world.rank(), next = (r + 1) % n, previous = (r + n - 1) % n;
  for (const Index count : {0, 1, 500, 50000}) {
    constexpr int kEach = 4;
    std::vector<Values<float>> out, in;
    for (int i = 0; i < lanes * kEach; ++i) {
      out.emplace_back(count);
      in.emplace_back(count);
      std::fill(out.back().values.begin(), out.back().values.end(), static_cast<float>(r * 1000 + i));
    }
    const std::vector<Tensor> sent = put_all(ex, out), received = put_all(ex, in);
    std::vector<Pending> sends, receives;
    const auto post_receives = [&](int lane) {
      for (int k = 0; k < kEach; ++k) {
        receives.push_back(recv(ex, all, received[static_cast<std::size_t>(lane * kEach + k)], previous, lane));
      }
    };
    post_receives(lanes - 1);
    for (int k = 0; k < kEach; ++k) {
      for (int lane = 0; lane < lanes; ++lane) {
        sends.push_back(send(ex, all, sent[static_cast<std::size_t>(lane * kEach + k)], next, lane));
      }
    }
    for (int lane = lanes - 1; lane-- > 0;) post_receives(lane);
    for (std::size_t i = receives.size(); i-- > 0;) receives[i].wait(ex);
    for (Pending& each : sends) each.wait(ex);
    for (int i = 0; i < lanes * kEach; ++i) {
      in[static_cast<std::size_t>(i)].get(ex);
      for (const float value : in[static_cast<std::size_t>(i)].values) {
        require(value == static_cast<float>(previous * 1000 + i), "lane ", i / kEach, " message ", i % kEach);
      }
    }
  }
}

void lanes_in_order(World& world) { order_of_lanes(world, 2); }
void three_lanes(World& world) { order_of_lanes(world, 3); }

/// Sends pile up before the first receive; collectives run in between.
void many_posted_sends(World& world) {
  if (world.size() == 1) return;
  Exec ex(device_of(world));
  const Group all = everyone(world);
  constexpr int kMessages = 300;
  const int n = world.size(), r = world.rank();
  std::vector<Values<std::int32_t>> out, in;
  std::vector<Pending> sends;
  for (int i = 0; i < kMessages; ++i) {
    out.emplace_back(i % 7 == 0 ? 20000 : 5);
    in.emplace_back(i % 7 == 0 ? 20000 : 5);
    for (std::int32_t& value : out.back().values) value = r * 1000 + i;
  }
  const std::vector<Tensor> sent = put_all(ex, out), received = put_all(ex, in);
  for (int i = 0; i < kMessages; ++i) {
    sends.push_back(send(ex, all, sent[static_cast<std::size_t>(i)], (r + 1) % n));
    if (i % 100 == 0) barrier(ex, all);
  }
  barrier(ex, all);
  for (int i = 0; i < kMessages; ++i) {
    Values<std::int32_t>& values = in[static_cast<std::size_t>(i)];
    recv(ex, all, received[static_cast<std::size_t>(i)], (r + n - 1) % n).wait(ex);
    values.get(ex);
    require(values[0] == (r + n - 1) % n * 1000 + i && values.values.back() == values[0], "message ", i);
  }
  for (Pending& each : sends) each.wait(ex);
}

/// A large send is done once its receive is posted, though the receiver waits for a later message.
void received_while_waiting(World& world) {
  const Group all = everyone(world);
  if (world.size() < 2 || world.rank() > 1) return;
  Exec ex(device_of(world));
  Values<float> large(200000), small(3);
  std::fill(large.values.begin(), large.values.end(), static_cast<float>(world.rank()));
  const Tensor a = large.put(ex), b = small.put(ex);
  if (world.rank() == 0) {
    send(ex, all, a, 1, 0).wait(ex);
    send(ex, all, b, 1, 1).wait(ex);
    ex.synchronize();
  } else {
    Pending first = recv(ex, all, a, 0, 0);
    recv(ex, all, b, 0, 1).wait(ex);
    first.wait(ex);
    large.get(ex);
    require(large[0] == 0 && large.values.back() == 0, "the large message has come");
  }
}

/// More bytes than a transport sends in one piece.
void long_messages(World& world) {
  const Group all = everyone(world);
  if (world.size() < 2 || world.rank() > 1) return;
  Exec ex(device_of(world));
  const Index count = (Index{70} << 20) + 3;
  Values<std::uint8_t> values(count);
  if (world.rank() == 0) {
    for (Index i = 0; i < count; ++i) values[i] = static_cast<std::uint8_t>(i * 7 / 5);
    send(ex, all, values.put(ex), 1, 1).wait(ex);
    ex.synchronize();
  } else {
    recv(ex, all, values.put(ex), 0, 1).wait(ex);
    values.get(ex);
    for (Index i = 0; i < count; ++i) require(values[i] == static_cast<std::uint8_t>(i * 7 / 5), "byte ", i);
  }
}

void counters_and_log(World& world) {
  if (world.size() == 1) return;
  Exec ex(device_of(world));
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const Group group = world.group("counted", ranks, {.messages = Messages::neighbours});
  Values<float> values(12);
  const Tensor tensor = values.put(ex);
  for (int i = 0; i < 3; ++i) all_reduce(ex, group, tensor, Reduce::sum).wait(ex);
  if (group.rank() == 0) send(ex, group, tensor.rows(0, 5), 1).wait(ex);
  if (group.rank() == 1) recv(ex, group, tensor.rows(0, 5), 0).wait(ex);
  const Counters& counters = world.group("counted", ranks).counters();  // the same group again
  require(counters[Op::all_reduce].calls == 3 && counters[Op::all_reduce].elements == 36 &&
              counters[Op::all_reduce].bytes == 144,
          "counter of all_reduce");
  require(counters[Op::send].calls == (group.rank() == 0 ? 1 : 0), "counter of send");
  require(counters[Op::recv].bytes == (group.rank() == 1 ? 20 : 0), "counter of recv");
  const std::string log = world.call_log();
  require(log.find("counted  all_reduce(sum, f32 x 12) #2 at transport_cases.cpp:") != std::string::npos,
          "log: " + log);
  require(log.find("NOT DONE") == std::string::npos, "log: " + log);
}

/// After all that the other cases did, or after anything else, all ranks agree.
void all_agree(World& world) {
  Exec ex(device_of(world));
  Values<std::uint64_t> sum(1);
  lanes_in_order(world);
  sum[0] = world.agreement_term();
  all_reduce(ex, everyone(world), sum.put(ex), Reduce::sum).wait(ex);
  sum.get(ex);
  require(sum[0] == 0, "the agreement terms must add up to 0");
}

/// With HostsMeet no call returns before all ranks have made it: then no GPU waits for a rank that is late.
void hosts_meet(World& world) {
  Exec ex(device_of(world));
  const Group all = everyone(world);
  Values<float> values(1);
  const Tensor x = values.put(ex);
  for (int late = 0; late < world.size(); ++late) {
    double called_s = 0, returned_s = 0;
    {
      const HostsMeet meet(world);
      if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      called_s = monotonic_s();
      Pending pending = all_reduce(ex, all, x, Reduce::sum);
      returned_s = monotonic_s();
      pending.wait(ex);
    }
    ex.synchronize();
    const double last_s = std::ranges::max(gather_values(world.all(), called_s));
    require(returned_s >= last_s, "a call returned ", last_s - returned_s, " s before rank ", late, " made it");
  }
}

void one_rank_groups(World& world) {
  Exec ex(device_of(world));
  const Group solo = world.group("solo", {world.rank()});
  Values<float> a = random_values<float>(1, 6), b(6);
  const Tensor from = a.put(ex);
  all_reduce(ex, solo, from, Reduce::sum).wait(ex);
  broadcast(ex, solo, from, 0).wait(ex);
  all_gather(ex, solo, from, b.put(ex)).wait(ex);
  b.get(ex);
  require(a.values == b.values, "all_gather of one rank copies");
  b = Values<float>(6);
  reduce_scatter(ex, solo, from, b.put(ex), Reduce::max).wait(ex);
  b.get(ex);
  require(a.values == b.values, "reduce_scatter of one rank copies");
  b = Values<float>(6);
  const Index counts[] = {6};
  all_to_all(ex, solo, from, counts, b.put(ex), counts).wait(ex);
  b.get(ex);
  require(a.values == b.values, "all_to_all of one rank copies");
  barrier(ex, solo);
  for (const Counter& counter : solo.counters().by_op) require(counter.calls == 0, "one rank counts nothing");
}

constexpr TransportCase kCases[] = {
    {"Reductions", reductions},
    {"LongReductions", long_reductions},
    {"NanIsKept", nan_is_kept},
    {"Moves", moves},
    {"AllToAllUneven", all_to_all_uneven},
    {"OverlappingGroups", overlapping_groups},
    {"LanesInOrder", lanes_in_order},
    {"ThreeLanes", three_lanes, "on GPUs messages have two lanes"},
    {"ManyPostedSends", many_posted_sends},
    {"ReceivedWhileWaiting", received_while_waiting},
    {"LongMessages", long_messages},
    {"HostsMeet", hosts_meet},
    {"CountersAndLog", counters_and_log},
    {"AllAgree", all_agree},
    {"OneRankGroups", one_rank_groups},
};

}  // namespace

std::span<const TransportCase> transport_cases() {
  static const std::vector<TransportCase> all = [] {
    std::vector<TransportCase> cases(std::begin(kCases), std::end(kCases));
    cases.insert(cases.end() - 2, row_transport_cases().begin(), row_transport_cases().end());  // before AllAgree
    return cases;
  }();
  return all;
}

Device device_of(const World& world) { return world.transport() == "nccl" ? Device::cuda : Device::cpu; }

Group everyone(World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group("world", std::move(ranks), {.messages = Messages::neighbours});
}

}  // namespace megalith::comm
