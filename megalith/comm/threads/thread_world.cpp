#include "megalith/comm/threads/thread_world.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/hub.h"
#include "megalith/comm/threads/team.h"
#include "megalith/comm/threads/thread_channel.h"

namespace megalith::comm {
namespace {

class ThreadWorld final : public World {
 public:
  ThreadWorld(Hub& hub, int rank) : hub_(hub), rank_(rank) { open_world(); }
  int rank() const override { return rank_; }
  int size() const override { return hub_.size(); }
  std::string_view transport() const override { return "threads"; }
  void abort(const std::string& reason) override { hub_.fail(rank_, reason); }
  std::string failure() const override { return hub_.failure(); }

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int rank, const GroupUse&) override {
    return channels_.emplace_back(std::make_shared<ThreadChannel>(hub_, std::move(name), std::move(world_ranks), rank));
  }

 private:
  void give_up() noexcept override {
    for (const std::shared_ptr<ThreadChannel>& channel : channels_) channel->take_back_all();
  }

  Hub& hub_;
  int rank_;
  std::vector<std::shared_ptr<ThreadChannel>> channels_;
};

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of a foreign type";
  }
}

/// One rank from start to end. Its failure goes into `failure`.
void run_rank(Hub& hub, int rank, const std::function<void(World&)>& body, std::exception_ptr& failure) {
  const TeamSize team(std::max(1, allowed_cores() / hub.size()));
  try {
    ThreadWorld world(hub, rank);
    body(world);
    hub.end(rank);
  } catch (...) {
    failure = std::current_exception();
    try {
      rethrow_with_rank(failure, rank);
    } catch (...) {
      failure = std::current_exception();
    }
    hub.fail(rank, text_of(failure));
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options) {
  if (size < 1) throw InternalError(str("[run_ranks] size = ", size, ": must be at least 1"));
  Hub hub(size, options);
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  try {
    for (int rank = 1; rank < size; ++rank) {
      threads.emplace_back([&, rank] { run_rank(hub, rank, body, failures[static_cast<std::size_t>(rank)]); });
    }
    run_rank(hub, 0, body, failures[0]);
  } catch (const std::system_error& error) {
    const int rank = static_cast<int>(threads.size()) + 1;
    const std::string text = str("[run_ranks] thread ", rank, " of ", size, " cannot start: ", error.what());
    failures[static_cast<std::size_t>(rank)] = std::make_exception_ptr(BackendError(text));
    hub.fail(rank, text);
  }
  for (std::thread& thread : threads) thread.join();
  if (!hub.failed()) return;
  const std::exception_ptr& first = failures[static_cast<std::size_t>(hub.failed_rank())];
  if (first != nullptr) std::rethrow_exception(first);
  throw InternalError(hub.failure());  // World::abort without an exception
}

}  // namespace megalith::comm
