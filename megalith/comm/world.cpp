#include "megalith/comm/world.h"

#include <algorithm>
#include <numeric>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/call_log.h"
#include "megalith/comm/positions.h"
#include "megalith/comm/silent_channel.h"
#include "megalith/comm/synchronize_ranks.h"

namespace megalith::comm {
namespace {

class DryWorld final : public World {
 public:
  DryWorld(int rank, int size) : rank_(rank), size_(size) { open_world(); }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return "dry"; }
  void abort(const std::string&) override {}

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int rank, const GroupUse&) override {
    return std::make_shared<SilentChannel>(std::move(name), std::move(world_ranks), rank);
  }

 private:
  int rank_, size_;
};

/// The index of `rank` in `world_ranks`, which is checked.
int member_of(std::string_view name, const std::vector<int>& world_ranks, int rank, int size) {
  const std::string where = str("[group] ", name, ": ");
  std::vector<bool> seen(static_cast<std::size_t>(size));
  for (const int member : world_ranks) {
    if (member < 0 || member >= size)
      throw InternalError(str(where, "rank ", member, " is outside the world of ", size));
    if (seen[static_cast<std::size_t>(member)]) throw InternalError(str(where, "rank ", member, " is listed twice"));
    seen[static_cast<std::size_t>(member)] = true;
  }
  const auto found = std::find(world_ranks.begin(), world_ranks.end(), rank);
  if (found == world_ranks.end()) throw InternalError(str(where, "rank ", rank, " is no member and cannot make it"));
  return static_cast<int>(found - world_ranks.begin());
}

}  // namespace

Group World::group(std::string name, std::vector<int> world_ranks, const GroupUse& use) {
  const int member = member_of(name, world_ranks, rank(), size());
  for (const Group& made : groups_) {
    if (made.name() == name && std::ranges::equal(made.world_ranks(), world_ranks)) return made;
  }
  std::shared_ptr<Channel> channel;
  if (world_ranks.size() == 1) {
    channel = std::make_shared<SilentChannel>(std::move(name), std::move(world_ranks), member);
  } else {
    channel = open(std::move(name), std::move(world_ranks), member, use);
  }
  channel->set_calls(calls_);
  return groups_.emplace_back(std::move(channel));
}

std::string_view name_of(Transport transport) {
  return transport == Transport::copy_engines ? "copy_engines" : "kernels";
}

World::World() : calls_(std::make_shared<RankCalls>()) {}

void World::adopt_world(const Group& all) { all_ = std::make_unique<Group>(all); }

void World::open_world() {
  std::vector<int> ranks(static_cast<std::size_t>(size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  all_ = std::make_unique<Group>(group("world", std::move(ranks)));
}

void World::use_positions(std::shared_ptr<Positions> positions) {
  positions_ = std::move(positions);
  calls_->log->set_positions(positions_, rank());
}

void World::begin_step(Index step) {
  if (positions_ != nullptr) positions_->writer(rank()).begin_step(step);
}

std::uint64_t World::agreement_term() const {
  std::uint64_t sum = 0;
  for (const Group& made : groups_) sum += made.channel().agreement_term();
  return sum;
}

void World::wait_for(Exec& ex) {
  const HostWait waiting(*this);
  ex.synchronize();
  check_health();
}

void World::wait_for(const Event& event) {
  const HostWait waiting(*this);
  event.wait();
  check_health();
}

void synchronize_ranks(World& world, Exec& ex, const char* when) {
  try {
    world.wait_for(ex);
    Exec host;
    barrier(host, world.all());
  } catch (Error& error) {
    error.put_in_front(str("[", when, "] "));
    throw;
  }
}

WatchedStep::WatchedStep(World& world, StepPattern& pattern, const Exec& ex) : world_(world) {
  pattern.begin(ex.ops_run());
  world_.calls_->pattern = &pattern;
}

WatchedStep::~WatchedStep() {
  if (world_.calls_->pattern != nullptr) world_.give_up();
  world_.calls_->pattern = nullptr;
}

void WatchedStep::end() {
  StepPattern*& pattern = world_.calls_->pattern;
  if (pattern != nullptr) pattern->end();
  pattern = nullptr;
}

WatchedReplays::WatchedReplays(World& world, const Exec& ex)
    : world_(world), stream_(ex.stream()), errors_at_start_(std::uncaught_exceptions()) {
  world_.add(stream_);
}

WatchedReplays::~WatchedReplays() {
  if (std::uncaught_exceptions() > errors_at_start_) world_.give_up();
  world_.remove(stream_);
}

std::string World::call_log() const {
  return str("rank ", rank(), " of ", size(), " (", transport(), "): ", calls_->log->text());
}

void rethrow_with_rank(const std::exception_ptr& error, int rank) {
  try {
    std::rethrow_exception(error);
  } catch (Error& e) {
    if (!std::string_view(e.what()).starts_with("rank ") && !is_verdict_of_all(e.code()))
      e.put_in_front(str("rank ", rank, ": "));
    throw;
  }
}

std::unique_ptr<World> dry_world(int rank, int size) {
  if (rank < 0 || rank >= size) throw InternalError(str("[dry_world] rank ", rank, " is outside a world of ", size));
  return std::make_unique<DryWorld>(rank, size);
}

}  // namespace megalith::comm
