#include "megalith/comm/mpi/mpi_world.h"

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include <mpi.h>
#include <sched.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/mpi/mpi_channel.h"
#include "megalith/comm/mpi/shared_memory.h"
#include "megalith/comm/positions.h"
#include "megalith/comm/threads/thread_world.h"

namespace megalith::comm {
namespace {

void check(int status, std::string_view what) {
  if (status == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  throw BackendError(str("[mpi] ", what, " failed: ", std::string_view(text.data(), static_cast<std::size_t>(length))));
}

/// What a failing rank sends to all others.
struct FailureNote {
  std::int32_t rank = 0;
  std::array<char, 508> text{};
};

class MpiLink final : public Link {
 public:
  MpiLink();

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(next_group_.size()); }
  /// Sends word of this rank's failure to all others, once, unless another rank has told first.
  void tell_failure(std::string_view reason);
  bool has_told() const { return told_.text[0] != '\0'; }
  /// Whether this rank's failure is the one to report: it has told, and no lower rank has.
  bool is_first_failure() const { return has_told() && failed_rank_ > rank_; }
  void finalize();
  void set_options(const WorldOptions& options) { timeout_s_ = options.timeout_s; }
  using Report = std::function<int(const std::exception&, int rank)>;
  /// How the failure of this rank is reported if its thread does not come to that itself.
  void set_report(Report report) { report_ = std::move(report); }

  Handle isend(const void* data, Index bytes, int world_rank, int tag) override;
  Handle irecv(void* data, Index bytes, int world_rank, int tag) override;
  bool test(Handle handle) override;
  void settle(std::string_view reason) noexcept override;
  int tag(Index group, int lane) const override;
  Index next_group(int world_rank) override { return next_group_[static_cast<std::size_t>(world_rank)]++; }
  const std::string& failure() override;
  bool is_failure_reported() const override { return positions_->is_failure_reported(); }
  double timeout_s() const override { return timeout_s_; }
  bool shares_memory_with(int world_rank) const override {
    return is_shared_ && positions_->home(world_rank) == positions_->home(rank_);
  }
  /// Positions::share().
  void share(std::shared_ptr<std::byte> memory, std::vector<int> homes) {
    positions_->share(std::move(memory), std::move(homes), rank_);
    is_shared_ = true;
  }
  PositionWriter& position() override { return positions_->writer(rank_); }
  const std::shared_ptr<Positions>& positions() const { return positions_; }

 private:
  static constexpr int kFailureTag = 0;
  Handle take_handle();
  void listen();
  void poll_failures();
  bool advance_all();
  void report_if_stuck(std::exception_ptr failure) const;

  double timeout_s_ = WorldOptions{}.timeout_s;
  bool settled_ = false;
  int rank_ = 0;
  Index highest_tag_ = 32767;
  std::vector<Index> next_group_;
  std::vector<MPI_Request> requests_;
  std::vector<Handle> free_handles_;
  FailureNote heard_, told_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  int failed_rank_ = 0;  // the lowest that has told; size() while none has
  std::string failure_;
  std::shared_ptr<Positions> positions_;
  bool is_shared_ = false;  // share() was called
  Report report_;
};

MpiLink::MpiLink() {
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  if (provided < MPI_THREAD_FUNNELED)
    throw BackendError("[mpi] this MPI cannot be used beside threads (MPI_THREAD_FUNNELED)");
  int ranks = 0;
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
  int* limit = nullptr;
  int known = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &known), "MPI_Comm_get_attr");
  if (known != 0) highest_tag_ = *limit;
  next_group_.resize(static_cast<std::size_t>(ranks));
  failed_rank_ = ranks;
  positions_ = std::make_shared<Positions>(ranks);
  position().introduce();
  listen();
}

Link::Handle MpiLink::take_handle() {
  if (settled_) throw AbortedError("[mpi] this rank has failed before and communicates no more");
  if (free_handles_.empty()) {
    requests_.push_back(MPI_REQUEST_NULL);
    free_handles_.push_back(static_cast<Handle>(requests_.size()) - 1);
    free_handles_.reserve(requests_.size());
  }
  const Handle handle = free_handles_.back();
  free_handles_.pop_back();
  return handle;
}

Link::Handle MpiLink::isend(const void* data, Index bytes, int world_rank, int tag) {
  const Handle handle = take_handle();
  MPI_Request& request = requests_[static_cast<std::size_t>(handle)];
  check(MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, world_rank, tag, MPI_COMM_WORLD, &request), "MPI_Isend");
  return handle;
}

Link::Handle MpiLink::irecv(void* data, Index bytes, int world_rank, int tag) {
  const Handle handle = take_handle();
  MPI_Request& request = requests_[static_cast<std::size_t>(handle)];
  check(MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, world_rank, tag, MPI_COMM_WORLD, &request), "MPI_Irecv");
  return handle;
}

bool MpiLink::test(Handle handle) {
  if (settled_) throw AbortedError("[mpi] this rank has failed before and communicates no more");
  int done = 0;
  check(MPI_Test(&requests_[static_cast<std::size_t>(handle)], &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done != 0) free_handles_.push_back(handle);
  return done != 0;
}

/// True when nothing is in flight. A transfer that ends in an error has ended.
bool MpiLink::advance_all() {
  bool all = true;
  for (MPI_Request& request : requests_) {
    if (request == MPI_REQUEST_NULL) continue;
    int done = 0;
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done == 0) all = false;
  }
  return all;
}

void MpiLink::settle(std::string_view reason) noexcept {
  constexpr double kAtLeast_s = 0.05;  // to hear of ranks that fail at the same moment: the lowest reports
  constexpr double kAtMost_s = 0.1;
  if (settled_) return;
  try {
    if (!reason.empty()) {
      tell_failure(reason);
      if (is_first_failure()) report_if_stuck(std::current_exception());
    }
    const double start = monotonic_s();
    for (double waited = 0; waited < kAtMost_s; waited = monotonic_s() - start) {
      const bool idle = advance_all();
      poll_failures();
      if (idle && waited > kAtLeast_s) break;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  } catch (const std::exception&) {
    // The failure that brought us here is the one to report.
  }
  settled_ = true;
  headers().clear();
}

/// An error that unwinds may meet a disk that does not answer, which may also be what the others wait for.
void MpiLink::report_if_stuck(std::exception_ptr failure) const {
  constexpr auto kUnwinds = std::chrono::seconds(4);  // longer than an error takes that nothing holds up
  if (failure == nullptr || report_ == nullptr) return;
  std::thread([failure = std::move(failure), report = report_, positions = positions_, rank = rank_, kUnwinds] {
    std::this_thread::sleep_for(kUnwinds);
    if (!positions->claim_report()) return;
    try {
      rethrow_with_rank(failure, rank);
    } catch (const std::exception& error) {
      std::_Exit(report(error, rank));  // the launcher ends the others
    } catch (...) {
      std::_Exit(static_cast<int>(ExitCode::internal));
    }
  }).detach();
}

int MpiLink::tag(Index group, int lane) const {
  const Index tag = 1 + (group * (kMaxLanes + 1) + lane) * 2;
  if (tag >= highest_tag_) {
    throw BackendError(str("[mpi] group ", group, " between two ranks needs tag ", tag + 1, ": this MPI ends at ",
                           highest_tag_, "; make fewer groups"));
  }
  return static_cast<int>(tag);
}

void MpiLink::listen() {
  check(MPI_Irecv(&heard_, sizeof(heard_), MPI_BYTE, MPI_ANY_SOURCE, kFailureTag, MPI_COMM_WORLD, &listening_),
        "MPI_Irecv");
}

void MpiLink::poll_failures() {
  if (settled_) return;
  int done = 0;
  check(MPI_Test(&listening_, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (done == 0) return;
  if (heard_.rank < failed_rank_) {
    failed_rank_ = heard_.rank;
    failure_ = failure_text({heard_.rank, heard_.text.data()});
    positions_->write_failure(heard_.rank, heard_.text.data());  // for other threads, and processes that share it
  }
  listen();
}

const std::string& MpiLink::failure() {
  poll_failures();
  return failure_;
}

void MpiLink::tell_failure(std::string_view reason) {
  poll_failures();
  if (settled_ || has_told() || failed_rank_ < size()) return;
  told_.rank = rank_;
  const std::string_view text = reason.empty() ? "no reason given" : reason.substr(0, told_.text.size() - 1);
  std::copy(text.begin(), text.end(), told_.text.begin());
  positions_->write_failure(rank_, text);
  for (int other = 0; other < size(); ++other) {
    if (other != rank_) isend(&told_, sizeof(told_), other, kFailureTag);
  }
}

void MpiLink::finalize() {
  MPI_Cancel(&listening_);
  MPI_Request_free(&listening_);
  check(MPI_Finalize(), "MPI_Finalize");
}

class MpiWorld final : public World {
 public:
  explicit MpiWorld(MpiLink& link) : link_(link) {
    use_positions(link.positions());
    open_world();
  }
  int rank() const override { return link_.rank(); }
  int size() const override { return link_.size(); }
  std::string_view transport() const override { return "mpi"; }
  void abort(const std::string& reason) override { link_.tell_failure(reason); }
  std::string failure() const override;
  void share_memory() override;
  bool shares_memory_with(int rank) const override { return link_.shares_memory_with(rank); }

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int rank, const GroupUse&) override {
    return std::make_shared<MpiChannel>(link_, std::move(name), std::move(world_ranks), rank);
  }

 private:
  MpiLink& link_;
};

/// Only the rank's own thread may call MPI, so this is what a process of this host has written into the shared memory:
/// its own failure, or one of another host of which its thread has heard. Without shared memory, what the own thread
/// has heard. Empty for a failure of this rank itself, whose error its thread has.
std::string MpiWorld::failure() const {
  const auto failure = link_.positions()->failure();
  return failure.has_value() && failure->rank != rank() ? failure_text(*failure) : std::string();
}

/// The lowest rank of a host makes the memory, the others open it by the random number of the first, and then it has no
/// name any more. A rank that cannot open it (a container of its own) counts as one on a host of its own.
void MpiWorld::share_memory() {
  struct Member {
    std::uint64_t host = 0, word = 0;
  };
  const Member own{host_id(), random_word()};
  const std::vector<Member> members = gather_unbooked<Member>(all(), {&own, 1});
  const auto first = std::ranges::find(members, own.host, &Member::host);
  const bool makes = first - members.begin() == rank();
  const std::size_t bytes = Positions::shared_bytes(size());
  const auto gather = [&](const std::unique_ptr<SharedMemory>& memory) {
    const std::uint8_t has_it = memory != nullptr ? 1 : 0;
    return gather_unbooked<std::uint8_t>(all(), {&has_it, 1});
  };
  std::unique_ptr<SharedMemory> memory;
  if (makes) memory = SharedMemory::create(own.word, bytes);
  gather(memory);
  if (!makes) memory = SharedMemory::open(first->word, bytes);
  const std::vector<std::uint8_t> has_it = gather(memory);
  if (memory != nullptr) memory->remove_name();
  std::vector<int> homes;
  for (int other = 0; other < size(); ++other) {
    const auto of_other = static_cast<std::size_t>(other);
    std::size_t home = 0;
    while (home < of_other && (members[home].host != members[of_other].host || has_it[home] == 0)) ++home;
    homes.push_back(has_it[of_other] != 0 ? static_cast<int>(home) : other);
  }
  link_.share(memory == nullptr ? nullptr : memory->memory(), std::move(homes));
}

/// How many ranks may run on the cores of this one: those of the same host with the same affinity mask.
int ranks_on_my_cores(World& world) {
  if (world.size() == 1) return 1;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  ::sched_getaffinity(0, sizeof(mask), &mask);
  const std::string_view mask_bytes(reinterpret_cast<const char*>(&mask), sizeof(mask));
  const std::uint64_t mine = fnv1a(mask_bytes, fnv1a(host_name()));
  const std::vector<std::uint64_t> all = gather_unbooked<std::uint64_t>(world.all(), {&mine, 1});
  return static_cast<int>(std::count(all.begin(), all.end(), mine));
}

/// Ends the job. Of ranks that fail at the same moment the lowest one reports. A rank leaves report and exit code to
/// another one if it was released from a wait, or knew of the other's failure before its own.
[[noreturn]] void fail(MpiLink& link, const std::exception& error,
                       const std::function<int(const std::exception&, int)>& report) {
  constexpr auto kOthersAct = std::chrono::milliseconds(300);  // they hear of it and write their call logs
  constexpr auto kFirstEndsTheJob = std::chrono::seconds(5);   // long before that
  const bool aborted = dynamic_cast<const AbortedError*>(&error) != nullptr;
  link.settle(aborted ? "" : error.what());
  int code = static_cast<int>(ExitCode::internal);
  if (link.is_first_failure() && link.positions()->claim_report()) {
    code = report(error, link.rank());
    std::this_thread::sleep_for(kOthersAct);
  } else {
    std::this_thread::sleep_for(kFirstEndsTheJob);
    if (const auto* own = dynamic_cast<const Error*>(&error)) code = static_cast<int>(own->code());
  }
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();
}

}  // namespace

bool has_mpi() { return true; }

std::string mpi_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  return std::string(all.substr(0, all.find_first_of(",\n")));  // what follows names who has built it
}

void run_mpi_rank(const std::function<void(World&)>& body, const std::function<int(const std::exception&, int)>& report,
                  const std::function<WorldOptions()>& options) {
  MpiLink link;
  MpiWorld world(link);  // outlives the body: what it has posted stays valid until the end
  try {
    link.set_report(report);
    link.set_options(options());
    const int sharing = ranks_on_my_cores(world);
    const TeamSize team(std::max(1, usable_cores() / sharing));
    body(world);
    if (link.has_told()) throw InternalError("[World::abort] this rank gave up");
  } catch (...) {
    try {
      rethrow_with_rank(std::current_exception(), link.rank());
    } catch (const std::exception& error) {
      fail(link, error, report);
    } catch (...) {
      fail(link, InternalError("an exception of a foreign type"), report);
    }
  }
  link.finalize();
}

}  // namespace megalith::comm
