#include "tests/comm/row_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/comm/mpi/mpi_channel.h"

namespace megalith::comm {

Tensor tensor_in_reach(Exec& ex, const Shape& shape, DType dtype) {
  constexpr Index kMinReachable = Index{64} << 10;
  const Index numel = Tensor(nullptr, shape, dtype).numel();
  const Tensor block = ex.tensor({std::max(numel, kMinReachable / size_of(dtype))}, dtype);
  return block.rows(0, numel).reshaped(shape);
}

PullLists::PullLists(Index max_pulls, Index out_rows)
    : counts(2),
      sources(static_cast<std::size_t>(2 * max_pulls), -1),
      begin(static_cast<std::size_t>(max_pulls + 1), -1),
      wants(static_cast<std::size_t>(out_rows), -1) {}

void PullLists::set(std::span<const WantedRow> wanted) {
  std::vector<std::pair<RowPlace, std::vector<std::int32_t>>> pulls;
  std::map<std::pair<int, int>, std::size_t> number;
  std::vector<std::int32_t> zeros;
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    const auto at = static_cast<std::int32_t>(row);
    if (wanted[row].kind == WantedRow::Kind::zeros) zeros.push_back(at);
    if (wanted[row].kind != WantedRow::Kind::row) continue;
    const RowPlace place = wanted[row].place;
    const auto [found, is_new] = number.try_emplace({place.member, place.row}, pulls.size());
    if (is_new) pulls.push_back({place, {}});
    pulls[found->second].second.push_back(at);
  }
  std::size_t end = 0;
  begin.at(0) = 0;
  for (std::size_t i = 0; i < pulls.size(); ++i) {
    sources.at(2 * i) = pulls[i].first.member;
    sources.at(2 * i + 1) = pulls[i].first.row;
    for (const std::int32_t row : pulls[i].second) wants.at(end++) = row;
    begin.at(i + 1) = static_cast<std::int32_t>(end);
  }
  for (const std::int32_t row : zeros) wants.at(end++) = row;
  counts = {static_cast<std::int32_t>(pulls.size()), static_cast<std::int32_t>(end)};
}

RowPulls PullLists::pulls() {
  const auto max_pulls = static_cast<Index>(begin.size()) - 1;
  return {.counts = Tensor(counts.data(), {2}, DType::i32),
          .sources = Tensor(sources.data(), {max_pulls, 2}, DType::i32),
          .begin = Tensor(begin.data(), {max_pulls + 1}, DType::i32),
          .wants = Tensor(wants.data(), {static_cast<Index>(wants.size())}, DType::i32)};
}

SumLists::SumLists(Index out_rows, Index max_terms)
    : begin(static_cast<std::size_t>(out_rows + 1)),
      places(static_cast<std::size_t>(2 * max_terms), -1),
      weights(static_cast<std::size_t>(max_terms), NAN) {}

void SumLists::set(std::span<const std::vector<WeightedPlace>> rows) {
  std::size_t end = 0;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    for (const WeightedPlace& term : rows[row]) {
      places.at(2 * end) = term.place.member;
      places.at(2 * end + 1) = term.place.row;
      weights.at(end++) = term.weight;
    }
    begin.at(row + 1) = static_cast<std::int32_t>(end);
  }
}

RowSums SumLists::sums() {
  const auto terms = static_cast<Index>(weights.size());
  return {.begin = Tensor(begin.data(), {static_cast<Index>(begin.size())}, DType::i32),
          .places = Tensor(places.data(), {terms, 2}, DType::i32),
          .weights = Tensor(weights.data(), {terms}, DType::f32)};
}

namespace {

constexpr std::uint8_t kUntouched = 0xa5;

template <class... Parts>
void expect(bool holds, const Parts&... parts) {
  if (!holds) throw std::runtime_error(str(parts...));
}

std::uint64_t word_of(Index a, Index b, Index c) {
  return mix64(mix64(mix64(static_cast<std::uint64_t>(a) * 7919u) + static_cast<std::uint64_t>(b)) +
               static_cast<std::uint64_t>(c));
}

std::vector<WantedRow> wanted_rows(int pattern, const Group& group, Index rows, Index out_rows) {
  std::vector<WantedRow> wanted(static_cast<std::size_t>(out_rows));
  if (pattern == 0 || (pattern == 6 && group.rank() % 2 == 0)) return wanted;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::uint64_t word = word_of(pattern, group.rank(), static_cast<Index>(i));
    if (word % 5 == 0) continue;
    wanted[i].kind = word % 5 == 1 || pattern == 1 || rows == 0 ? WantedRow::Kind::zeros : WantedRow::Kind::row;
    RowPlace& place = wanted[i].place;
    place.member = static_cast<std::int32_t>((word >> 8) % static_cast<std::uint64_t>(group.size()));
    if (rows > 0) place.row = static_cast<std::int32_t>((word >> 40) % static_cast<std::uint64_t>(rows));
    if (pattern == 3) place = {.member = group.size() - 1, .row = 0};
    if (pattern == 4) place.member = (group.rank() + 1) % group.size();
    if (pattern == 5) place.member = group.rank();
  }
  return wanted;
}

std::uint8_t byte_of(int member, Index i) { return static_cast<std::uint8_t>(word_of(member, 1, i) >> 3); }

/// In the memory of the device of `ex`.
Tensor put(Exec& ex, const Tensor& host) {
  if (!host || ex.device() == Device::cpu) return host;
  const Tensor there = ex.tensor_like(host);
  ex.copy(there.raw(), host.raw(), host.bytes());
  return there;
}

Tensor put_in_reach(Exec& ex, const Tensor& host) {
  if (ex.device() == Device::cpu) return host;
  const Tensor there = tensor_in_reach(ex, host.shape(), host.dtype());
  ex.copy(there.raw(), host.raw(), host.bytes());
  return there;
}

RowPulls put(Exec& ex, const RowPulls& pulls) {
  return {put(ex, pulls.counts), put(ex, pulls.sources), put(ex, pulls.begin), put(ex, pulls.wants)};
}
RowSums put(Exec& ex, const RowSums& sums) {
  return {put(ex, sums.begin), put(ex, sums.places), put(ex, sums.weights)};
}

/// Makes the call when all members have taken their memory (run_peer_ranks), and copies its result back.
template <class MakeCall>
void call_and_get(Exec& ex, const Group& group, const Tensor& out, const Tensor& host, const MakeCall& make) {
  if (ex.device() != Device::cpu) {
    ex.synchronize();
    barrier(ex, group);
  }
  make();
  if (ex.device() == Device::cpu) return;
  ex.synchronize();
  ex.copy(host.raw(), out.raw(), out.bytes());
  ex.synchronize();
  barrier(ex, group);  // before any member frees what others read
}

}  // namespace

void check_gather_rows(Exec& ex, const Group& group, DType dtype, const RowSizes& sizes, int pattern) {
  const Index row_bytes = sizes.width * size_of(dtype);
  std::vector<std::uint8_t> mine(static_cast<std::size_t>(sizes.rows * row_bytes));
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = byte_of(group.rank(), static_cast<Index>(i));
  std::vector<std::uint8_t> out(static_cast<std::size_t>(sizes.out_rows * row_bytes), kUntouched);
  const std::vector<WantedRow> wanted = wanted_rows(pattern, group, sizes.rows, sizes.out_rows);
  PullLists lists(group.size() * sizes.rows, sizes.out_rows);
  lists.set(wanted);
  const Tensor result(out.data(), {sizes.out_rows, sizes.width}, dtype), to = put(ex, result);
  const Tensor from = put_in_reach(ex, Tensor(mine.data(), {sizes.rows, sizes.width}, dtype));
  const RowPulls pulls = put(ex, lists.pulls());
  call_and_get(ex, group, to, result, [&] { gather_rows(ex, group, from, pulls, to).wait(ex); });
  for (Index row = 0; row < sizes.out_rows; ++row) {
    const WantedRow& source = wanted[static_cast<std::size_t>(row)];
    for (Index i = 0; i < row_bytes; ++i) {
      std::uint8_t right = source.kind == WantedRow::Kind::zeros ? std::uint8_t{0} : kUntouched;
      if (source.kind == WantedRow::Kind::row) right = byte_of(source.place.member, source.place.row * row_bytes + i);
      expect(out[static_cast<std::size_t>(row * row_bytes + i)] == right, "gather_rows ", name_of(dtype), " [",
             sizes.rows, ", ", sizes.width, "], pattern ", pattern, ": row ", row, ", byte ", i);
    }
  }
}

namespace {

/// A group of one rank reads rows on CPUs only.
bool reads_rows(const World& world) { return world.size() > 1 || device_of(world) == Device::cpu; }

void gather_matches(World& world, DType dtype, const RowSizes& sizes, int pattern) {
  Exec ex(device_of(world));
  check_gather_rows(ex, everyone(world), dtype, sizes, pattern);
}

/// Between GPUs a call takes milliseconds, many where they share one. So not all dtypes meet all lists there.
bool is_made(const World& world, DType dtype, int pattern) {
  return device_of(world) == Device::cpu || dtype == DType::bf16 || pattern == 2;
}

void gathers_rows(World& world) {
  if (!reads_rows(world)) return;
  for (int pattern = 0; pattern < kRowPatterns; ++pattern) {
    for (const RowSizes& sizes :
         {RowSizes{5, 1, 12}, RowSizes{0, 4, 3}, RowSizes{7, 0, 3}, RowSizes{3, 5, 0}, RowSizes{40, 33, 100}}) {
      for (const DType dtype : {DType::bf16, DType::f32, DType::f64, DType::u8, DType::i32}) {
        if (is_made(world, dtype, pattern)) gather_matches(world, dtype, sizes, pattern);
      }
    }
  }
}

/// A list so long, or a row so wide, that MPI sends blocks of columns; the blocks of members differ.
void gathers_long_lists_and_wide_rows(World& world) {
  if (!reads_rows(world)) return;
  constexpr Index kWide = MpiChannel::kRowsBytes / 4 + 1;
  gather_matches(world, DType::f32, {2, kWide, 3}, 2);
  gather_matches(world, DType::f32, {2, kWide, 3}, 6);
  gather_matches(world, DType::bf16, {900, 301, 9000 + 4000 * world.rank()}, 2);
  gather_matches(world, DType::u8, {300, 67, 70000}, 3);
  if (device_of(world) != Device::cpu) gather_matches(world, DType::f32, {2, Index{8} << 20, 2}, 4);  // 32 MiB
}

/// Of mixed sign and size, so that the order of a sum shows in its last bits.
template <class T>
T number_of(int member, Index i) {
  const std::uint64_t word = word_of(member, 2, i);
  return static_cast<T>(
      static_cast<float>(std::ldexp(static_cast<double>(word >> 11) * 0x1p-53 - 0.5, static_cast<int>(word % 12))));
}

/// One term more, as the device computes it: a GPU fuses, so do ops::sum_rows() and rank threads on such processors.
template <class A>
A plus_term(Device device, A sum, A weight, A value) {
  bool fuses = device != Device::cpu;
#if defined(__x86_64__)
  fuses = fuses || (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"));
#endif
  return fuses ? std::fma(weight, value, sum) : sum + weight * value;
}

std::vector<std::vector<WeightedPlace>> terms_of(int pattern, const Group& group, const RowSizes& sizes) {
  std::vector<std::vector<WeightedPlace>> rows(static_cast<std::size_t>(sizes.out_rows));
  std::vector<WantedRow> wanted = wanted_rows(pattern, group, sizes.rows, 9 * sizes.out_rows);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].kind == WantedRow::Kind::left) continue;
    if (wanted[i].kind == WantedRow::Kind::zeros) wanted[i].place = {kNoMember, -1};
    const float weight = static_cast<float>(static_cast<std::int32_t>(i % 17) - 5) / 3;
    rows[i % rows.size()].push_back({wanted[i].place, weight});
  }
  return rows;
}

template <class T>
void check_sums_of(Exec& ex, const Group& group, const RowSizes& sizes, int pattern, const SumOptions& options) {
  using A = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const Index width = sizes.width;
  std::vector<T> mine(static_cast<std::size_t>(sizes.rows * width)),
      out(static_cast<std::size_t>(sizes.out_rows * width));
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = number_of<T>(group.rank(), static_cast<Index>(i));
  const T before = static_cast<T>(options.write == Write::overwrite ? NAN : 0.37f);
  std::fill(out.begin(), out.end(), before);
  const std::vector<std::vector<WeightedPlace>> terms = terms_of(pattern, group, sizes);
  SumLists lists(sizes.out_rows, 9 * sizes.out_rows);
  lists.set(terms);
  RowSums sums = lists.sums();
  std::vector<A> weights(lists.weights.begin(), lists.weights.end());
  const bool weighted = options.weights == SumOptions::Weights::given;
  sums.weights = weighted ? Tensor(weights.data(), {static_cast<Index>(weights.size())}, dtype_of<A>) : Tensor();
  const Tensor result(out.data(), {sizes.out_rows, width}, dtype_of<T>), to = put(ex, result);
  const Tensor from = put_in_reach(ex, Tensor(mine.data(), {sizes.rows, width}, dtype_of<T>));
  sums = put(ex, sums);
  call_and_get(ex, group, to, result, [&] { gather_sum_rows(ex, group, from, sums, to, options.write).wait(ex); });
  for (Index i = 0; i < sizes.out_rows * width; ++i) {
    A sum = options.write == Write::accumulate ? static_cast<A>(before) : A{};
    for (const WeightedPlace& term : terms[static_cast<std::size_t>(i / width)]) {
      if (term.place.member == kNoMember) continue;
      const T value = number_of<T>(term.place.member, term.place.row * width + i % width);
      sum = plus_term(ex.device(), sum, weighted ? static_cast<A>(term.weight) : A{1}, static_cast<A>(value));
    }
    const T right = static_cast<T>(sum);
    expect(std::memcmp(&right, &out[static_cast<std::size_t>(i)], sizeof(T)) == 0, "gather_sum_rows ",
           name_of(dtype_of<T>), " [", sizes.rows, ", ", width, "], pattern ", pattern, ": element ", i);
  }
}

}  // namespace

void check_gather_sum_rows(Exec& ex, const Group& group, DType dtype, const RowSizes& sizes, int pattern,
                           const SumOptions& options) {
  dispatch_float(dtype, "check_gather_sum_rows",
                 [&]<class T>() { check_sums_of<T>(ex, group, sizes, pattern, options); });
}

namespace {

constexpr SumOptions kWeighted{}, kAdded{Write::accumulate};

void sum_matches(World& world, DType dtype, const RowSizes& sizes, int pattern, const SumOptions& options) {
  Exec ex(device_of(world));
  check_gather_sum_rows(ex, everyone(world), dtype, sizes, pattern, options);
}

void sums_rows(World& world) {
  if (!reads_rows(world)) return;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    for (int pattern = 0; pattern < kRowPatterns; ++pattern) {
      if (!is_made(world, dtype, pattern)) continue;
      for (const RowSizes& sizes : {RowSizes{5, 1, 12}, RowSizes{3, 4, 0}, RowSizes{7, 0, 3}, RowSizes{40, 333, 30}}) {
        for (const Write write : {Write::overwrite, Write::accumulate}) {
          for (const auto weights : {SumOptions::Weights::none, SumOptions::Weights::given})
            sum_matches(world, dtype, sizes, pattern, {write, weights});
        }
      }
    }
  }
}

void sums_long_lists_and_wide_rows(World& world) {
  if (!reads_rows(world)) return;
  sum_matches(world, DType::f32, {2, MpiChannel::kRowsBytes / 8 + 1, 2}, 2, kWeighted);
  sum_matches(world, DType::bf16, {900, 301, 2000 + 900 * world.rank()}, 2, kAdded);
}

void counts_and_logs_rows(World& world) {
  if (world.size() == 1) return;
  std::vector<int> ranks;
  for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
  const Group group = world.group("rows", ranks, {.transport = Transport::kernels});  // no PeerGroup
  Exec ex(device_of(world));
  std::vector<float> mine(12), out(8);
  const Tensor from = put_in_reach(ex, Tensor(mine.data(), {3, 4}, DType::f32)),
               to = put(ex, Tensor(out.data(), {2, 4}, DType::f32));
  PullLists pulls(3, 2);
  pulls.set({});
  SumLists sums(2, 1);
  for (int i = 0; i < 2; ++i) gather_rows(ex, group, from, put(ex, pulls.pulls()), to).wait(ex);
  gather_sum_rows(ex, group, from, put(ex, sums.sums()), to, Write::overwrite).wait(ex);
  ex.synchronize();
  const Counter &gathers = group.counters()[Op::gather_rows], &summed = group.counters()[Op::gather_sum_rows];
  expect(gathers.calls == 2 && gathers.elements == 24 && gathers.bytes == 96, "counter of gather_rows");
  expect(summed.calls == 1 && summed.elements == 12 && summed.bytes == 48, "counter of gather_sum_rows");
  const std::string log = world.call_log();
  expect(log.find("rows  gather_rows(f32 x 12 in rows of 4) #1 at row_cases.cpp:") != std::string::npos, log);
  expect(log.find("rows  gather_sum_rows(f32 x 12 in rows of 4) #2 at row_cases.cpp:") != std::string::npos, log);
  expect(log.find("NOT DONE") == std::string::npos, log);
}

void one_rank_reads_its_own_rows(World& world) {
  Exec ex;
  const Group solo = world.group("solo", {world.rank()});
  std::vector<float> mine = {1, 2, 3, 4}, out(6, 7);
  const Tensor from(mine.data(), {2, 2}, DType::f32), to(out.data(), {3, 2}, DType::f32);
  PullLists pulls(2, 3);
  pulls.set(std::vector<WantedRow>{{WantedRow::Kind::row, {0, 1}}, {WantedRow::Kind::zeros}, {}});
  gather_rows(ex, solo, from, pulls.pulls(), to).wait(ex);
  expect(out == std::vector<float>{3, 4, 0, 0, 7, 7}, "gather_rows of one rank");
  SumLists sums(3, 3);
  sums.set(std::vector<std::vector<WeightedPlace>>{{{{0, 0}, 2}, {{0, 1}, 1}}, {}, {{{0, 1}, 3}}});
  gather_sum_rows(ex, solo, from, sums.sums(), to, Write::accumulate).wait(ex);
  expect(out == std::vector<float>{8, 12, 0, 0, 16, 19}, "gather_sum_rows of one rank");
  for (const Counter& counter : solo.counters().by_op) expect(counter.calls == 0, "one rank counts nothing");
}

constexpr const char* kOnCpus = "a group of one rank reads rows on CPUs only";

constexpr TransportCase kRowCases[] = {
    {"GathersRows", gathers_rows},
    {"GathersLongListsAndWideRows", gathers_long_lists_and_wide_rows},
    {"SumsRows", sums_rows},
    {"SumsLongListsAndWideRows", sums_long_lists_and_wide_rows},
    {"CountsAndLogsRows", counts_and_logs_rows},
    {"OneRankReadsItsOwnRows", one_rank_reads_its_own_rows, kOnCpus},
};

// ---- Misuse ----

/// A call on matrices [4, 3] whose lists spoil() changes on rank 1.
template <class Spoil>
void gather_spoilt(World& world, const Spoil& spoil) {
  Exec ex(device_of(world));
  const Group all = everyone(world);
  std::vector<float> mine(12), out(15);
  PullLists lists(8, 5);
  lists.set(std::vector<WantedRow>{{WantedRow::Kind::row, {0, 1}},
                                   {WantedRow::Kind::row, {1, 2}},
                                   {WantedRow::Kind::row, {0, 1}},
                                   {WantedRow::Kind::zeros}});
  if (world.rank() == 1) spoil(lists);
  gather_rows(ex, all, put_in_reach(ex, Tensor(mine.data(), {4, 3}, DType::f32)), put(ex, lists.pulls()),
              put(ex, Tensor(out.data(), {5, 3}, DType::f32)))
      .wait(ex);
  barrier(ex, all);
}

template <class Spoil>
void sum_spoilt(World& world, const Spoil& spoil) {
  Exec ex(device_of(world));
  const Group all = everyone(world);
  std::vector<float> mine(12), out(6);
  SumLists lists(2, 3);
  lists.set(std::vector<std::vector<WeightedPlace>>{{{{0, 1}}, {{1, 2}}}, {{{1, 3}}}});
  if (world.rank() == 1) spoil(lists);
  gather_sum_rows(ex, all, put_in_reach(ex, Tensor(mine.data(), {4, 3}, DType::f32)), put(ex, lists.sums()),
                  put(ex, Tensor(out.data(), {2, 3}, DType::f32)), Write::overwrite)
      .wait(ex);
  barrier(ex, all);
}

void pull_of_no_member(World& world) {
  gather_spoilt(world, [](PullLists& lists) { lists.sources[2] = 2; });
}
void pull_of_no_row(World& world) {
  gather_spoilt(world, [](PullLists& lists) { lists.sources[1] = -1; });
}
void pull_to_no_row(World& world) {
  gather_spoilt(world, [](PullLists& lists) { lists.wants[3] = 5; });
}
void too_many_pulls(World& world) {
  gather_spoilt(world, [](PullLists& lists) { lists.counts[0] = 9; });
}
void too_many_wants(World& world) {
  gather_spoilt(world, [](PullLists& lists) { lists.counts[1] = 6; });
}
void pulls_that_do_not_ascend(World& world) {
  gather_spoilt(world, [](PullLists& lists) { lists.begin[1] = 5; });
}
void term_of_no_member(World& world) {
  sum_spoilt(world, [](SumLists& lists) { lists.places[4] = 2; });
}
void term_of_no_row(World& world) {
  sum_spoilt(world, [](SumLists& lists) { lists.places[1] = 4; });
}
void too_many_terms(World& world) {
  sum_spoilt(world, [](SumLists& lists) { lists.begin[2] = 4; });
}

/// As many elements, in rows of another width.
void other_width(World& world) {
  Exec ex;
  std::vector<float> mine(12), out(12);
  const Index width = world.rank() == 1 ? 6 : 4;
  PullLists lists(1, 2);
  lists.set({});
  gather_rows(ex, world.all(), Tensor(mine.data(), {12 / width, width}, DType::f32), lists.pulls(),
              Tensor(out.data(), {2, width}, DType::f32))
      .wait(ex);
  barrier(ex, world.all());
}

}  // namespace

void gather_small_rows(World& world) {
  gather_spoilt(world, [](PullLists&) {});
}
void sum_small_rows(World& world) {
  sum_spoilt(world, [](SumLists&) {});
}

std::span<const TransportCase> row_transport_cases() { return kRowCases; }

std::span<const MisuseCase> row_misuse_cases() {
  using enum ExitCode;
  static const std::vector<MisuseCase> list = {
      {"PullOfNoMember",
       2,
       collective,
       {"rank 1: [gather_rows] group world of 2 ranks: sources[1] = (2, 2): must be a member from 0 to 1 and a row "
        "from 0 "
        "to 3"},
       pull_of_no_member},
      {"PullOfNoRow",
       2,
       collective,
       {"rank 1: [gather_rows] group world", "sources[0] = (0, -1): must"},
       pull_of_no_row},
      {"PullToNoRow", 2, collective, {"rank 1: ", "wants[3] = 5: must be a row from 0 to 4"}, pull_to_no_row},
      {"TooManyPulls", 2, collective, {"rank 1: ", "counts[0] = 9: must be from 0 to 8"}, too_many_pulls},
      {"TooManyWants", 2, collective, {"rank 1: ", "counts[1] = 6: must be from 0 to 5"}, too_many_wants},
      {"PullsThatDoNotAscend",
       2,
       collective,
       {"rank 1: ", "begin[1] = 5: must be from 0 to 4"},
       pulls_that_do_not_ascend},
      {"TermOfNoMember",
       2,
       collective,
       {"rank 1: [gather_sum_rows] group world of 2 ranks: places[2] = (2, 3): must be a member from 0 to 1"},
       term_of_no_member},
      {"TermOfNoRow", 2, collective, {"rank 1: ", "places[0] = (0, 4): must", "a row from 0 to 3"}, term_of_no_row},
      {"TooManyTerms", 2, collective, {"rank 1: ", "begin[2] = 4: must be from 2 to 3"}, too_many_terms},
      {"OtherWidth",
       2,
       collective,
       {"gather_rows(f32 x 12 in rows of 4) #0", "gather_rows(f32 x 12 in rows of 6) #0"},
       other_width},
  };
  return list;
}

}  // namespace megalith::comm
