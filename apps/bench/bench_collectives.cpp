#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/world.h"

#include "apps/bench/bench.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"

namespace megalith::apps {
namespace {

struct CollectivesBench {
  std::string device = "cpu", dtype, format = "text", transfers{comm::name_of(comm::Transport::copy_engines)};
  std::vector<std::string> only;
  std::uint64_t smallest = std::uint64_t{64} << 10, largest = std::uint64_t{256} << 20;
  Index factor = 4, rounds = 20, warmup = 5;
  int ranks = 0;
};

/// Tensors for calls of one size: `whole` and `other` have one part per rank, `part` is one part. Lists of rows are
/// those of an all-to-all, and of a reduce-scatter.
struct Tensors {
  Tensor whole, other, part;
  Index row = 1;  ///< numbers of a row
  comm::RowPulls pulls = {};
  comm::RowSums sums = {};

  Tensor rows(const Tensor& tensor) const { return tensor.reshaped({tensor.numel() / row, row}); }
};

/// The rank that needs an element of a result: `rank` of `ranks`, each with `part` elements.
struct Asker {
  int rank = 0, ranks = 1;
  Index part = 0;
  int next() const { return (rank + 1) % ranks; }
  int previous() const { return (rank + ranks - 1) % ranks; }
};

/// Element i of the input of rank `rank`: 0 or 1, by a hash of both. So sums are exact in every dtype (in bf16 up to
/// kMaxRanks ranks), and a missing or misplaced part is seen.
int input_value(int rank, Index i) {
  const auto hash = static_cast<std::uint32_t>(i) * 0x9e3779b1u ^ (static_cast<std::uint32_t>(rank) + 1) * 0x85ebca6bu;
  return static_cast<int>((hash * 0xc2b2ae35u) >> 31);
}
constexpr int kMaxRanks = 256;

int input_sum(int ranks, Index i) {
  int sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += input_value(rank, i);
  return sum;
}

struct Collective {
  std::string_view name;
  comm::Op op;
  Tensor Tensors::*in;
  Tensor Tensors::*out;
  void (*run)(Exec& ex, const comm::Group& group, const Tensors& t);
  int (*wanted)(const Asker& who, Index i);  ///< element i of the result
  double (*bus_factor)(double ranks);        ///< bus bandwidth over algorithm bandwidth
};

constexpr int kRoot = 0;
constexpr Index kRowBytes = 4096;

constexpr double every_byte_once(double) { return 1; }
constexpr double all_parts_but_one(double ranks) { return (ranks - 1) / ranks; }

const std::array<Collective, 7> kCollectives = {{
    {.name = "all_reduce",
     .op = comm::Op::all_reduce,
     .in = &Tensors::whole,
     .out = &Tensors::whole,
     .run = [](Exec& ex, const comm::Group& group,
               const Tensors& t) { comm::all_reduce(ex, group, t.whole, comm::Reduce::sum).wait(ex); },
     .wanted = [](const Asker& who, Index i) { return input_sum(who.ranks, i); },
     .bus_factor = [](double ranks) { return 2 * all_parts_but_one(ranks); }},
    {.name = "reduce_scatter",
     .op = comm::Op::reduce_scatter,
     .in = &Tensors::whole,
     .out = &Tensors::part,
     .run = [](Exec& ex, const comm::Group& group,
               const Tensors& t) { comm::reduce_scatter(ex, group, t.whole, t.part, comm::Reduce::sum).wait(ex); },
     .wanted = [](const Asker& who, Index i) { return input_sum(who.ranks, who.rank * who.part + i); },
     .bus_factor = all_parts_but_one},
    {.name = "all_gather",
     .op = comm::Op::all_gather,
     .in = &Tensors::part,
     .out = &Tensors::whole,
     .run = [](Exec& ex, const comm::Group& group,
               const Tensors& t) { comm::all_gather(ex, group, t.part, t.whole).wait(ex); },
     .wanted = [](const Asker& who, Index i) { return input_value(static_cast<int>(i / who.part), i % who.part); },
     .bus_factor = all_parts_but_one},
    {.name = "broadcast",
     .op = comm::Op::broadcast,
     .in = &Tensors::whole,
     .out = &Tensors::whole,
     .run = [](Exec& ex, const comm::Group& group,
               const Tensors& t) { comm::broadcast(ex, group, t.whole, kRoot).wait(ex); },
     .wanted = [](const Asker&, Index i) { return input_value(kRoot, i); },
     .bus_factor = every_byte_once},
    {.name = "send_recv",
     .op = comm::Op::send,
     .in = &Tensors::whole,
     .out = &Tensors::other,
     .run =
         [](Exec& ex, const comm::Group& group, const Tensors& t) {
           const Asker me{group.rank(), group.size()};
           comm::Pending received = comm::recv(ex, group, t.other, me.previous());
           comm::send(ex, group, t.whole, me.next()).wait(ex);
           received.wait(ex);
         },
     .wanted = [](const Asker& who, Index i) { return input_value(who.previous(), i); },
     .bus_factor = every_byte_once},
    {.name = "gather_rows",
     .op = comm::Op::gather_rows,
     .in = &Tensors::whole,
     .out = &Tensors::other,
     .run = [](Exec& ex, const comm::Group& group,
               const Tensors& t) { comm::gather_rows(ex, group, t.rows(t.whole), t.pulls, t.rows(t.other)).wait(ex); },
     .wanted = [](const Asker& who,
                  Index i) { return input_value(static_cast<int>(i / who.part), who.rank * who.part + i % who.part); },
     .bus_factor = all_parts_but_one},
    {.name = "gather_sum_rows",
     .op = comm::Op::gather_sum_rows,
     .in = &Tensors::whole,
     .out = &Tensors::part,
     .run =
         [](Exec& ex, const comm::Group& group, const Tensors& t) {
           comm::gather_sum_rows(ex, group, t.rows(t.whole), t.sums, t.rows(t.part), comm::Write::overwrite).wait(ex);
         },
     .wanted = [](const Asker& who, Index i) { return input_sum(who.ranks, who.rank * who.part + i); },
     .bus_factor = all_parts_but_one},
}};

/// Throws ConfigError for an unknown name.
DType dtype_of_name(const std::string& name) {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (name == name_of(dtype)) return dtype;
  }
  throw ConfigError(str("--dtype = ", name, ": must be f64, f32, bf16 or f16"));
}

/// Calls f.template operator()<T>() with the type of `dtype`.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::bf16:
      return f.template operator()<bfloat16>();
    case DType::f16:
      return f.template operator()<float16>();
    default:
      return dispatch_float(dtype, "bench collectives", f);
  }
}

/// One collective at one size.
struct CollectiveRow {
  std::string_view name;
  std::string_view transport;  ///< the transport of the calls
  Index bytes = 0;             ///< of the larger of input and result
  double seconds = 0;          ///< median
  double bus_factor = 1;

  double algorithm_rate() const { return static_cast<double>(bytes) / seconds; }
  double bus_rate() const { return algorithm_rate() * bus_factor; }
};

/// All measurements.
struct CollectiveTimes {
  std::optional<CollectiveRow> roof;  ///< nothing if it cannot be measured
  std::vector<CollectiveRow> rows;

  double share_of_roof(const CollectiveRow& row) const { return row.bus_rate() / roof->bus_rate(); }
};

/// One rank of the benchmark.
class CollectivesRunner {
 public:
  CollectivesRunner(comm::World& world, const CollectivesBench& options, Device device, DType dtype)
      : world_(world),
        options_(options),
        ex_(device),
        dtype_(dtype),
        collectives_(everyone("collectives", comm::Messages::none)),
        messages_(everyone("messages", comm::Messages::neighbours)) {}

  CollectiveTimes run() {
    const Index largest = parts_of(static_cast<Index>(options_.largest)) * world_.size();
    const Tensor a = ex_.tensor({largest}, dtype_), b = ex_.tensor({largest}, dtype_);
    CollectiveTimes times{.roof = roof(a, b), .rows = {}};
    std::vector<CollectiveRow>& rows = times.rows;
    for (const Collective& one : kCollectives) {
      if (!options_.only.empty() && std::ranges::find(options_.only, one.name) == options_.only.end()) continue;
      for (const std::uint64_t bytes : sizes()) {
        Index part = parts_of(static_cast<Index>(bytes));
        const Index row = row_of(part);
        if (comm::is_of_rows(one.op)) part -= part % row;
        const Index count = part * world_.size();
        Tensors tensors{a.rows(0, count), b.rows(0, count), b.rows(0, part), row};
        if (comm::is_of_rows(one.op)) list_rows(tensors);
        expect_right(one, tensors);
        device::fill_bytes(ex_.device(), tensors.whole.raw(), 0, tensors.whole.bytes(),
                           ex_.stream());  // so that sums stay 0
        rows.push_back({.name = one.name,
                        .transport = transport_of(one, tensors),
                        .bytes = count * size_of(dtype_),
                        .seconds = median_seconds([&] { one.run(ex_, group_of(one), tensors); }),
                        .bus_factor = one.bus_factor(world_.size())});
      }
    }
    return times;
  }

 private:
  Tensor on_device(const std::vector<std::int32_t>& numbers, const Shape& shape) {
    const Tensor tensor = ex_.tensor(shape, DType::i32);
    ex_.copy(tensor.raw(), numbers.data(), tensor.bytes());
    ex_.synchronize();
    return tensor;
  }
  /// Numbers of a row: of 4 KiB, or of half of that or more, if that divides a part.
  Index row_of(Index part) const {
    const Index most = std::min(part, kRowBytes / size_of(dtype_));
    for (Index row = most; 2 * row > most; --row) {
      if (part % row == 0) return row;
    }
    return most;
  }
  /// This rank pulls its part of every member's matrix, or sums those of all members.
  void list_rows(Tensors& t) {
    const int ranks = world_.size();
    const Index of_part = t.part.numel() / t.row, all = of_part * ranks;
    std::vector<std::int32_t> pulled, numbers, begins, summed;
    const auto number = [](Index i) { return static_cast<std::int32_t>(i); };
    for (Index i = 0; i < all; ++i) {
      const Index mine = world_.rank() * of_part;
      pulled.insert(pulled.end(), {number(i / of_part), number(mine + i % of_part)});
      summed.insert(summed.end(), {number(i % ranks), number(mine + i / ranks)});
      numbers.push_back(number(i));
    }
    for (Index i = 0; i <= of_part; ++i) begins.push_back(number(i * ranks));
    const Tensor wants = on_device(numbers, {all});
    numbers.push_back(number(all));
    t.pulls = {.counts = on_device({number(all), number(all)}, {2}),
               .sources = on_device(pulled, {all, 2}),
               .begin = on_device(numbers, {all + 1}),
               .wants = wants};
    t.sums = {.begin = on_device(begins, {of_part + 1}), .places = on_device(summed, {all, 2}), .weights = {}};
  }

  std::vector<std::uint64_t> sizes() const {
    std::vector<std::uint64_t> all = {options_.smallest};
    const auto factor = static_cast<std::uint64_t>(options_.factor);
    while (all.back() <= options_.largest / factor) all.push_back(all.back() * factor);
    return all;
  }

  /// The limit of memories and links: every rank copies `from` at the same time. On CPUs it copies into its own `to`.
  /// On GPUs it copies into that of the next rank, so that each rank sends and receives. Nothing if GPUs cannot access
  /// the memory of each other, as between processes. Collective.
  std::optional<CollectiveRow> roof(const Tensor& from, const Tensor& to) {
    void* target = to.raw();
    if (ex_.device() == Device::cuda) {
      if (!all_reach_next()) return std::nullopt;
      const std::vector<void*> targets = comm::gather_values(world_.all(), target);
      target = targets[static_cast<std::size_t>((world_.rank() + 1) % world_.size())];
    }
    const double seconds =
        median_seconds([&] { device::copy(ex_.device(), target, from.raw(), from.bytes(), ex_.stream()); });
    return CollectiveRow{.name = "roof: copy", .transport = "a plain copy", .bytes = from.bytes(), .seconds = seconds};
  }

  /// Whether the GPU of the previous rank may access the memory of this one, on all ranks. Only threads of one process
  /// know the GPUs of each other (device::use).
  bool all_reach_next() const {
    const std::span<const int> sharers = device::sharers();
    const std::vector<int> gpus = comm::gather_values(world_.all(), sharers.front());
    const int previous = gpus[static_cast<std::size_t>((world_.rank() + world_.size() - 1) % world_.size())];
    const bool mine = sharers.size() > 1 && std::ranges::find(sharers, previous) != sharers.end();
    const std::vector<int> agreed = comm::gather_values(world_.all(), mine ? 1 : 0);
    return std::ranges::find(agreed, 0) == agreed.end();
  }

  /// A group of all ranks, made as training makes its data-parallel groups, or with messages those of pipeline stages
  /// (comm::make_mesh). On GPUs a group with messages leaves all collectives to NCCL (PeerGroup::takes).
  comm::Group everyone(std::string name, comm::Messages messages) {
    std::vector<int> ranks(static_cast<std::size_t>(world_.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    const bool by_kernels = options_.transfers == comm::name_of(comm::Transport::kernels);
    const comm::Transport transport = by_kernels ? comm::Transport::kernels : comm::Transport::copy_engines;
    return world_.group(std::move(name), std::move(ranks), {.messages = messages, .transport = transport});
  }
  const comm::Group& group_of(const Collective& one) const {
    return comm::is_message(one.op) ? messages_ : collectives_;
  }
  std::string_view transport_of(const Collective& one, const Tensors& tensors) const {
    const comm::Call call{.op = one.op, .dtype = dtype_, .count = (tensors.*one.in).numel()};
    const std::string_view transport = group_of(one).channel().transport_of(call, ex_.stream());
    return transport.empty() ? world_.transport() : transport;
  }

  /// Elements per rank if `bytes` are divided among the ranks.
  Index parts_of(Index bytes) const { return std::max<Index>(1, bytes / size_of(dtype_) / world_.size()); }

  /// Runs the collective once and checks the result.
  void expect_right(const Collective& one, const Tensors& tensors) {
    const Tensor &in = tensors.*one.in, &out = tensors.*one.out;
    const Asker who{world_.rank(), world_.size(), tensors.part.numel()};
    with_type(dtype_, [&]<class T>() {
      std::vector<T> given(static_cast<std::size_t>(in.numel())), got(static_cast<std::size_t>(out.numel()));
      for (std::size_t i = 0; i < given.size(); ++i)
        given[i] = static_cast<T>(static_cast<float>(input_value(who.rank, static_cast<Index>(i))));
      device::fill_bytes(ex_.device(), out.raw(), 0xff, out.bytes(), ex_.stream());
      ex_.copy(in.raw(), given.data(), in.bytes());
      one.run(ex_, group_of(one), tensors);
      ex_.copy(got.data(), out.raw(), out.bytes());
      ex_.synchronize();
      world_.check_health();
      for (std::size_t i = 0; i < got.size(); ++i) {
        const int wanted = one.wanted(who, static_cast<Index>(i));
        const T exact = static_cast<T>(static_cast<float>(wanted));
        using Bits = std::array<std::byte, sizeof(T)>;
        if (std::bit_cast<Bits>(got[i]) == std::bit_cast<Bits>(exact)) continue;
        throw InternalError(str("[bench collectives] ", one.name, " of ", in.bytes(), " bytes in ", name_of(dtype_),
                                " over ", world_.size(), world_.size() == 1 ? " rank (" : " ranks (",
                                transport_of(one, tensors), "): element ", i, " = ", static_cast<float>(got[i]),
                                ": must be ", wanted));
      }
    });
  }

  /// The median of the rounds. A round lasts until its last rank has finished.
  double median_seconds(const std::function<void()>& work) {
    for (Index i = 0; i < options_.warmup; ++i) work();
    const auto rounds = static_cast<std::size_t>(options_.rounds);
    std::vector<TimePoint> begins, ends;
    for (std::size_t i = 0; i < rounds; ++i) {
      begins.emplace_back(ex_.device());
      ends.emplace_back(ex_.device());
    }
    comm::barrier(ex_, collectives_);
    for (std::size_t i = 0; i < rounds; ++i) {
      begins[i].record(ex_.stream());
      work();
      ends[i].record(ex_.stream());
    }
    ex_.synchronize();
    world_.check_health();
    std::vector<double> times;
    for (std::size_t i = 0; i < rounds; ++i) times.push_back(ends[i].seconds_since(begins[i]));
    Exec host;
    comm::all_reduce(host, world_.all(), Tensor(times.data(), {options_.rounds}, DType::f64), comm::Reduce::max)
        .wait(host);
    return median(std::move(times));
  }

  comm::World& world_;
  const CollectivesBench& options_;
  Exec ex_;
  DType dtype_;
  comm::Group collectives_, messages_;
};

/// The number of ranks, from the options or the launcher; else one per GPU of this machine.
int ranks_of(const CollectivesBench& options, const Launcher& launcher, Device device) {
  if (options.ranks > 0) require_processes(launcher, "--ranks", options.ranks);
  const int fewest = device == Device::cuda ? std::max(2, device::num_gpus()) : 2;
  const int ranks = launcher.processes > 0 ? launcher.processes : options.ranks > 0 ? options.ranks : fewest;
  if (ranks < 2) throw ConfigError(str("--ranks = ", ranks, ": must be at least 2: one rank has nobody to talk to"));
  return ranks;
}

void print_text(const CollectiveTimes& times, const std::string& title) {
  std::printf("%s\n%-16s %12s %14s %16s %12s %8s  %s\n", title.c_str(), "", "bytes", "time", "algorithm", "bus",
              "of roof", "carried by");
  const auto print = [&](const CollectiveRow& row) {
    char share[16] = "       -";
    if (times.roof) std::snprintf(share, sizeof share, "%6.1f %%", 100 * times.share_of_roof(row));
    std::printf("%-16s %12lld %11.1f us %11.2f GB/s %7.2f GB/s %s  %s\n", std::string(row.name).c_str(),
                static_cast<long long>(row.bytes), 1e6 * row.seconds, 1e-9 * row.algorithm_rate(),
                1e-9 * row.bus_rate(), share, std::string(row.transport).c_str());
  };
  if (times.roof) print(*times.roof);
  for (const CollectiveRow& row : times.rows) print(row);
}

void print_json(const CollectiveTimes& times) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  const auto add = [&](const CollectiveRow& row) {
    out.push_back({{"name", row.name},
                   {"transport", row.transport},
                   {"bytes", row.bytes},
                   {"seconds", row.seconds},
                   {"algorithm_bytes_per_second", row.algorithm_rate()},
                   {"bus_bytes_per_second", row.bus_rate()}});
    if (times.roof) out.back()["share_of_roof"] = times.share_of_roof(row);
  };
  if (times.roof) add(*times.roof);
  for (const CollectiveRow& row : times.rows) add(row);
  std::printf("%s\n", out.dump(2).c_str());
}

void run_collectives_bench(const CollectivesBench& options) {
  const Launcher launcher = detect_launcher();
  const Device device = options.device == "cuda" ? Device::cuda : Device::cpu;
  DType dtype = DType::f32;
  const auto shape = [&] {
    const std::string usual(name_of(device == Device::cuda ? DType::bf16 : DType::f32));
    dtype = dtype_of_name(options.dtype.empty() ? usual : options.dtype);
    if (options.largest > kMaxBytes)
      throw ConfigError(str("--max = ", options.largest, ": must be at most 2^48 bytes, as a tensor's"));
    if (options.smallest > options.largest)
      throw ConfigError(str("--min = ", options.smallest, ": must be at most --max = ", options.largest));
    const int ranks = ranks_of(options, launcher, device);
    if (dtype == DType::bf16 && ranks > kMaxRanks)
      throw ConfigError(str("--dtype = bf16: sums of ", ranks, " ranks cannot be checked in it; use f32"));
    return JobShape{ranks, device};  // with any transport GPUs share memory, for the measured limit
  };
  const auto body = [&](comm::World& world) {
    const CollectiveTimes times = CollectivesRunner(world, options, device, dtype).run();
    if (world.rank() != 0) return;
    if (options.format == "json")
      print_json(times);
    else
      print_text(times, str(world.size(), " ranks (", world.transport(), "), ", name_of(dtype), ", median of ",
                            options.rounds, " rounds"));
  };
  run_job(launcher, {.shape = shape, .body = body});
}

}  // namespace

void add_bench_collectives(CLI::App& bench) {
  const auto o = std::make_shared<CollectivesBench>();
  CLI::App* command = bench.add_subcommand(
      "collectives",
      "Communication between ranks: threads of this process, processes under mpirun, or GPUs over NCCL.\n"
      "Every result is compared with what it must be before it is timed. Bandwidths are those of nccl-tests. "
      "Algorithm: bytes / time, where bytes are a rank's whole input, but its whole result of all_gather. Bus, to "
      "compare with the links' speed whatever the number n of ranks: algorithm bandwidth times 2 (n-1)/n for "
      "all_reduce, 1 for broadcast and send_recv, (n-1)/n for the others. In send_recv every rank sends to the next "
      "one and receives from the one before. gather_rows and gather_sum_rows are calls of experts, here as an "
      "all-to-all and as a reduce-scatter of rows of 4 KiB. The roof is a plain copy of the largest size by every rank "
      "at once, on GPUs into the next rank's memory, and shares of it are the bus bandwidth's; what fits a CPU's "
      "caches may exceed it. '-': GPUs do not reach each other's memory, or ranks are processes. Each row names the "
      "transport: threads, mpi or nccl, or between GPUs that reach each other's memory copy engines or kernels with "
      "device barriers. Calls are those of training outside of graphs that it awaits before long.");
  command->add_option("--device", o->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--ranks", o->ranks,
                   "Ranks (default: those of the launcher; else as many as there are GPUs, 2 on the CPU)")
      ->check(at_least(2));
  std::vector<std::string> names;
  for (const Collective& one : kCollectives) names.emplace_back(one.name);
  command->add_option("--only", o->only, "Some of them, as all_reduce,send_recv (default: all)")
      ->delimiter(',')
      ->check(CLI::IsMember(names));
  command->add_option("--dtype", o->dtype, "f64, f32, bf16 or f16 (default: f32 on the CPU, bf16 on GPUs)");
  command
      ->add_option("--transfers", o->transfers,
                   "What carries what is large between GPUs, as parallel.transfers: copy_engines (and kernels of ours, "
                   "between ranks of one host; else as kernels), or kernels: NCCL's. On the CPU there is no choice")
      ->check(CLI::IsMember({"copy_engines", "kernels"}))
      ->capture_default_str();
  const CLI::AsSizeValue size(false);  // KiB and K are 1024
  command->add_option("--min", o->smallest, "Bytes to begin with (default: 64KiB)")
      ->transform(size)
      ->check(at_least(1));
  command->add_option("--max", o->largest, "Bytes to end with (default: 256MiB)")->transform(size);
  command->add_option("--factor", o->factor, "From one size to the next")->check(at_least(2))->capture_default_str();
  command->add_option("--rounds", o->rounds, "Calls timed, of which the median counts")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--warmup", o->warmup, "Calls before them")->check(at_least(0))->capture_default_str();
  command->add_option("--format", o->format, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->callback([o] { run_collectives_bench(*o); });
}

}  // namespace megalith::apps
