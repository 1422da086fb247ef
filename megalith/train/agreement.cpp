#include "megalith/train/agreement.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "megalith/base/hash.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/config/keys.h"
#include "megalith/io/save_protocol.h"
#include "megalith/train/gather.h"

namespace megalith::train {
namespace {

struct Digest {
  std::uint64_t hash = 0;
  std::size_t length = 0;
  bool operator==(const Digest&) const = default;
};

/// "key\0value\0key\0value\0..."
std::string wire_of(const Facts& facts) {
  std::string wire;
  for (const auto& [key, value] : facts) {
    for (const std::string& part : {key, value}) {
      wire += part;
      wire += '\0';
    }
  }
  return wire;
}

Facts facts_in(std::string_view wire) {
  const auto next = [&] {
    const std::size_t end = std::min(wire.find('\0'), wire.size());
    std::string part(wire.substr(0, end));
    wire.remove_prefix(std::min(end + 1, wire.size()));
    return part;
  };
  Facts facts;
  while (!wire.empty()) {
    std::string key = next();
    facts.emplace_back(std::move(key), next());
  }
  return facts;
}

std::string value_in(const Facts& facts, std::string_view key) {
  const auto found = std::ranges::find(facts, key, &Facts::value_type::first);
  return found == facts.end() ? "unset" : found->second;
}

/// One line per key in which some rank differs from rank 0; the first of them.
std::string differences(const std::vector<Facts>& everybody) {
  constexpr int kMaxLines = 8;
  std::vector<std::string> keys;
  for (const Facts& facts : everybody) {
    for (const auto& [key, value] : facts) {
      if (std::ranges::find(keys, key) == keys.end()) keys.push_back(key);
    }
  }
  std::string text;
  int lines = 0;
  for (const std::string& key : keys) {
    const std::string of_first = value_in(everybody.front(), key);
    std::string theirs;
    comm::RankList others;
    for (std::size_t rank = 1; rank < everybody.size(); ++rank) {
      const std::string value = value_in(everybody[rank], key);
      if (value == of_first || (!theirs.empty() && value != theirs)) continue;
      theirs = value;
      others.add(static_cast<int>(rank));
    }
    if (others.empty()) continue;
    if (++lines <= kMaxLines)
      text += str("\n  ", key, " = ", theirs, " on ", others.text(), ", ", of_first, " on rank 0");
  }
  if (lines > kMaxLines) text += str("\n  and ", lines - kMaxLines, " more");
  return text;
}

}  // namespace

Facts facts_of(const config::RunPlan& plan) {
  Facts facts;
  for (const auto& [name, value] : config::toml_values(plan.as_config())) {
    if (config::find_key(name)->ranks_may == config::RanksMay::not_differ) facts.emplace_back(name, value);
  }
  return facts;
}

void require_same(comm::World& world, const Facts& facts, Start start) {
  const comm::Group& all = world.all();
  if (all.size() == 1) return;
  std::string wire = wire_of(facts);
  wire.insert(wire.begin(), static_cast<char>(start));
  const Digest mine{fnv1a(wire), wire.size()};
  const std::vector<Digest> digests = comm::gather_unbooked<Digest>(all, {&mine, 1});
  if (std::ranges::count(digests, mine) == all.size()) return;

  const std::size_t longest = std::ranges::max(digests, {}, &Digest::length).length;
  wire.resize(longest);
  const std::vector<char> bytes = comm::gather_unbooked<char>(all, wire);
  std::vector<Facts> all_facts;
  for (std::size_t rank = 0; rank < digests.size(); ++rank)
    all_facts.push_back(facts_in({bytes.data() + rank * longest + 1, digests[rank].length - 1}));
  const std::string text =
      "ranks were started with different settings; all must have the same:" + differences(all_facts);
  if (static_cast<Start>(bytes.front()) == Start::resumed) throw CheckpointError(CheckpointError::Kind::refused, text);
  throw ConfigError(text);
}

void require_shared(comm::World& world, io::Fs& fs, const io::Path& folder, std::string_view setting) {
  constexpr int kLooks = 101;  // 5 s
  constexpr auto kBetweenLooks = std::chrono::milliseconds(50);
  const bool first = world.rank() == 0;
  const std::string name = share_text(world, first ? "ranks" + io::temporary_suffix() : std::string());
  std::string problem;
  if (first) {
    try {
      fs.create(folder / name)->close();
    } catch (const IoError& error) {
      problem = error.what();
    }
  }
  problem = share_text(world, problem);
  if (!problem.empty()) throw IoError(str(setting, ": ", problem));

  const io::Path made = share_text(world, (folder / name).string());
  const auto sees = [&] { return fs.exists(made) && fs.exists(folder / name); };
  // Ranks look together, so that none waits for another for long, however short its patience is.
  std::vector<int> seen;
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) std::this_thread::sleep_for(kBetweenLooks);
    seen = comm::gather_values<int>(world.all(), sees() ? 1 : 0);
    if (std::ranges::find(seen, 0) == seen.end()) break;
  }
  if (first) fs.unlink(made);
  Exec host;
  comm::barrier(host, world.all());  // a rank that refuses ends all others: the file is gone before
  const auto blind = std::ranges::find(seen, 0);
  if (blind == seen.end()) return;
  const auto rank = static_cast<int>(blind - seen.begin());
  throw ConfigError(share_text(
      world,
      str(setting, " = ", folder.string(), ": rank ", rank, " on ", host_name(), " does not see ", made.string(),
          ", which rank 0 has just made; it must be one folder on a file system that all "
          "ranks share"),
      rank));
}

}  // namespace megalith::train
