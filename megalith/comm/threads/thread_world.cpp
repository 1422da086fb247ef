#include "megalith/comm/threads/thread_world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <vector>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/comm/threads/hub.h"
#include "megalith/comm/threads/thread_channel.h"

namespace megalith::comm {
namespace {

class ThreadWorld final : public World {
 public:
  ThreadWorld(Hub& hub, int rank) : hub_(hub), rank_(rank) {
    hub.position(rank).introduce();
    use_positions(hub.positions());
    open_world();
  }
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

/// The rank threads of one run_ranks().
class Ranks {
 public:
  using Body = std::function<void(World&)>;
  using Report = std::function<int(const std::exception&, int rank)>;

  Ranks(int size, const Body& body, const WorldOptions& options, const Report& report)
      : hub_(size, options), body_(body), report_(report), failures_(static_cast<std::size_t>(size)) {}

  void run();

 private:
  void run_rank(int rank);
  void fail(int rank, const std::exception_ptr& error);
  bool have_left_within(double seconds) const;
  void leave_if_one_stays(int rank, const std::exception_ptr& failure) const;

  Hub hub_;
  const Body& body_;
  const Report& report_;
  std::vector<std::exception_ptr> failures_;
  std::atomic<int> left_{0};  ///< ranks whose body has ended
};

void Ranks::fail(int rank, const std::exception_ptr& error) {
  failures_[static_cast<std::size_t>(rank)] = error;
  hub_.fail(rank, text_of(error));
}

/// One rank from start to end.
void Ranks::run_rank(int rank) {
  const TeamSize team(std::max(1, usable_cores() / hub_.size()));
  std::exception_ptr failure;
  try {
    ThreadWorld world(hub_, rank);
    body_(world);
    hub_.end(rank);
  } catch (...) {
    failure = std::current_exception();
  }
  if (failure != nullptr) {
    try {
      rethrow_with_rank(failure, rank);
    } catch (...) {
      failure = std::current_exception();
    }
    fail(rank, failure);
  }
  left_ += 1;
  if (failure != nullptr && hub_.failed_rank() == rank && report_ != nullptr) leave_if_one_stays(rank, failure);
}

bool Ranks::have_left_within(double seconds) const {
  const double start = monotonic_s();
  while (left_ < hub_.size()) {
    if (monotonic_s() - start > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Calls the report on the failed rank's thread, because the rank that hangs is another one.
void Ranks::leave_if_one_stays(int rank, const std::exception_ptr& failure) const {
  constexpr double kUsual_s = 1, kOthersAct_s = 5;  // they are released from their waits, and write their call logs
  if (have_left_within(kUsual_s)) return;
  int code = static_cast<int>(ExitCode::internal);
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    code = report_(error, rank);
  } catch (...) {
    code = report_(InternalError("an exception of a foreign type"), rank);
  }
  have_left_within(kOthersAct_s);
  std::_Exit(code);  // no destructor of objects that the others may use
}

void Ranks::run() {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(hub_.size()));
  try {
    for (int rank = 1; rank < hub_.size(); ++rank) threads.emplace_back([this, rank] { run_rank(rank); });
    run_rank(0);
  } catch (const std::system_error& error) {
    const int rank = static_cast<int>(threads.size()) + 1;
    const std::string text =
        str("[run_ranks] thread ", rank, " of ", hub_.size(), " cannot start: ", error.what(),
            ": let the process have more memory and threads (ulimit -v, ulimit -u, control group)");
    fail(rank, std::make_exception_ptr(IoError(text)));
  }
  for (std::thread& thread : threads) thread.join();
  if (!hub_.failed()) return;
  const std::exception_ptr& first = failures_[static_cast<std::size_t>(hub_.failed_rank())];
  if (first != nullptr) std::rethrow_exception(first);
  throw InternalError(hub_.failure());  // World::abort without an exception
}

}  // namespace

void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options,
               const std::function<int(const std::exception&, int rank)>& report) {
  if (size < 1) throw InternalError(str("[run_ranks] size = ", size, ": must be at least 1"));
  Ranks(size, body, options, report).run();
}

}  // namespace megalith::comm
