#include "megalith/train/replica_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/io/checksum.h"
#include "megalith/train/gather.h"

namespace megalith::train {
namespace {

constexpr std::size_t kMaxBuffers = 3;  // of ParamSet: of the dense grid, of experts, of a rule
using BufferSums = std::array<std::uint64_t, kMaxBuffers>;

const comm::Group& replicas_of(const comm::Mesh& mesh, const ParamBuffer& buffer) {
  return mesh.reduction_group({.grid = buffer.grid()});
}

/// Calls use(number of the buffer, buffer, ranks of its replicas) for each buffer that has any.
template <class Use>
void for_each_replicated(Engine& engine, Use&& use) {
  std::size_t number = 0;
  for (const ParamBuffer& buffer : engine.stage().params().buffers()) {
    const std::size_t at = number++;
    const comm::Group& replicas = replicas_of(engine.mesh(), buffer);
    if (!buffer.is_sharded() && replicas.size() > 1) use(at, buffer, replicas.world_ranks());
  }
}

std::uint64_t checksum_of(Exec& ex, HostStaging& staging, const MasterValues& values) {
  std::uint64_t sum = 0;
  const Index most = HostStaging::kBytes / size_of(values.dtype());
  for (Index at = 0; at < values.numel(); at += most) {
    const Tensor block = staging.read(ex, values, at, std::min(most, values.numel() - at));
    const std::span bytes(static_cast<const std::byte*>(block.raw()), static_cast<std::size_t>(block.bytes()));
    sum = hash_combine(sum, io::checksum(bytes).low);
  }
  return sum;
}

/// "0,2,4"
std::string text_of_ranks(std::span<const int> ranks) {
  std::string text;
  for (const int rank : ranks) text += str(text.empty() ? "" : ",", rank);
  return text;
}

/// The checksums of a rank: of each buffer, and a line per parameter, "0,2,4 layers.0.norm1.weight 123". The ranks of
/// its replicas tell slices of one name apart.
struct ReplicaSums {
  BufferSums of_buffers{};
  std::string lines = {};
};

ReplicaSums replica_sums(Engine& engine, HostStaging& staging) {
  ReplicaSums sums;
  for_each_replicated(engine, [&](std::size_t at, const ParamBuffer& buffer, std::span<const int> ranks) {
    for (const Param& param : buffer.params()) {
      const std::uint64_t sum = checksum_of(engine.exec(), staging, param.masters_without_padding());
      sums.of_buffers.at(at) = hash_combine(sums.of_buffers.at(at), sum);
      sums.lines += str(text_of_ranks(ranks), ' ', param.name(), ' ', sum, '\n');
    }
  });
  return sums;
}

/// Whether all replicas of this rank's buffers have its sums.
bool has_equal_replicas(Engine& engine, BufferSums mine) {
  comm::World& world = engine.world();
  std::vector<std::uint64_t> all(kMaxBuffers * static_cast<std::size_t>(world.size()));
  Exec host;
  comm::all_gather(host, world.all(), Tensor(mine.data(), {Index{kMaxBuffers}}, DType::u64),
                   Tensor(all.data(), {std::ssize(all)}, DType::u64))
      .wait(host);
  bool is_equal = true;
  for_each_replicated(engine, [&](std::size_t at, const ParamBuffer&, std::span<const int> ranks) {
    for (const int rank : ranks)
      is_equal = is_equal && all[static_cast<std::size_t>(rank) * kMaxBuffers + at] == mine.at(at);
  });
  return is_equal;
}

using RanksOfSum = std::map<std::uint64_t, std::vector<int>>;

/// "X on rank 5 is not that of rank 1,3"; without a majority "X differs between rank 2 and 3".
std::string difference_of(const std::string& parameter, const RanksOfSum& ranks_of_sum) {
  const auto most = std::ranges::max_element(ranks_of_sum, {}, [](const auto& same) { return same.second.size(); });
  std::vector<int> others;
  std::string all;
  for (const auto& [sum, ranks] : ranks_of_sum) {
    if (sum != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    all += str(all.empty() ? "" : " and ", text_of_ranks(ranks));
  }
  if (most->second.size() <= others.size()) return str(parameter, " differs between rank ", all);
  std::ranges::sort(others);
  return str(parameter, " on rank ", text_of_ranks(others), " is not that of rank ", text_of_ranks(most->second));
}

/// Names the first parameter that differs, in the order of a rank's parameters. `lines`: ReplicaSums::lines of all
/// ranks.
std::string first_difference(const std::vector<std::vector<std::byte>>& lines) {
  std::vector<std::pair<std::string, RanksOfSum>> params;  // by the ranks of their replicas and name
  std::map<std::string, std::size_t> places;
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    std::istringstream text(std::string(reinterpret_cast<const char*>(lines[rank].data()), lines[rank].size()));
    std::uint64_t sum = 0;
    for (std::string ranks, name; text >> ranks >> name >> sum;) {
      const auto [place, is_new] = places.try_emplace(str(ranks, ' ', name), params.size());
      if (is_new) params.emplace_back(name, RanksOfSum());
      params[place->second].second[sum].push_back(static_cast<int>(rank));
    }
  }
  const auto differs = std::ranges::find_if(params, [](const auto& param) { return param.second.size() > 1; });
  return differs == params.end() ? std::string() : difference_of(differs->first, differs->second);
}

}  // namespace

void require_equal_replicas(Engine& engine, HostStaging& staging) {
  comm::World& world = engine.world();
  ReplicaSums mine;
  std::string problem;
  try {
    mine = replica_sums(engine, staging);
  } catch (const IoError& error) {  // one rank's host has no memory for copies: all must know
    problem = error.what();
  }
  problem = share_first_text(world, problem);
  if (!problem.empty()) throw IoError(problem);
  std::uint64_t differs = has_equal_replicas(engine, mine.of_buffers) ? 0 : 1;
  Exec host;
  comm::all_reduce(host, world.all(), Tensor(&differs, {1}, DType::u64), comm::Reduce::max).wait(host);
  if (differs == 0) return;
  const std::vector<std::vector<std::byte>> all = gather_bytes(world, std::as_bytes(std::span(mine.lines)));
  throw CollectiveError(str("[replicas] ", share_text(world, all.empty() ? std::string() : first_difference(all)),
                            ": model copies must hold the same values; this state is not saved. Go on from an earlier "
                            "checkpoint; memory or a GPU of that rank may be faulty"));
}

}  // namespace megalith::train
