#include "megalith/comm/nccl/nccl_world.h"

#include <exception>
#include <utility>

#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/comm/nccl/check.h"
#include "megalith/comm/nccl/nccl_channel.h"
#include "megalith/comm/nccl/process_memory.h"
#include "megalith/comm/nccl/watchdog.h"
#include "megalith/tensor/cuda/shared_memory.h"

namespace megalith::comm {
namespace {

class NcclWorld final : public World {
 public:
  NcclWorld(World& host, const WorldOptions& options, Transport transfers)
      : host_(host), errors_at_start_(std::uncaught_exceptions()), watchdog_(host, options.timeout_s) {
    use_positions(host.positions());
    adopt_world(host.all());
    if (transfers == Transport::copy_engines) share_memory_of_processes(options.timeout_s);
  }
  ~NcclWorld() override {
    if (std::uncaught_exceptions() > errors_at_start_) watchdog_.give_up();
    watchdog_.close();
    if (memory_ == nullptr) return;
    cuda::publish_memory_by(nullptr);
    memory_->close();
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string_view transport() const override { return "nccl"; }
  std::string failure() const override { return host_.failure(); }
  void check_health() override { watchdog_.check_health(); }
  Index device_bytes() const override { return device_bytes_; }
  void abort(const std::string& reason) override {
    host_.abort(reason);
    watchdog_.give_up();
  }

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int, const GroupUse& use) override {
    watchdog_.check_health();
    const Index in_use = device::memory_in_use(Device::cuda);
    const Group bootstrap = host_.group("bootstrap-" + name, std::move(world_ranks));
    const auto channel = std::make_shared<NcclChannel>(watchdog_, bootstrap, std::move(name), use);
    watchdog_.add(channel);
    try {
      channel->connect();
    } catch (...) {
      watchdog_.give_up();  // ends a group that is only partly made
      throw;
    }
    device_bytes_ += device::memory_in_use(Device::cuda) - in_use;
    return channel;
  }

 private:
  void share_memory_of_processes(double timeout_s) {
    ProcessMemory shared = share_process_memory(host_, timeout_s);
    memory_ = std::move(shared.memory);
    if (memory_ != nullptr) cuda::publish_memory_by(memory_);
    if (shared.why_not.empty()) return;
    for (int rank = 0; rank < host_.rank(); ++rank) {
      if (host_.shares_memory_with(rank)) return;  // it prints this
    }
    log::warning(str("NCCL carries all calls between the GPUs of this host's processes: ", shared.why_not));
  }
  void give_up() noexcept override { watchdog_.give_up(); }
  void add(Stream replays) override { watchdog_.add(replays); }
  void remove(Stream replays) noexcept override { watchdog_.remove(replays); }
  void begin_host_wait() override { watchdog_.begin_host_wait(); }
  void end_host_wait() noexcept override { watchdog_.end_host_wait(); }

  World& host_;
  int errors_at_start_;
  Index device_bytes_ = 0;
  Watchdog watchdog_;
  std::shared_ptr<PeerMemory> memory_;  // null: this process shares none with others
};

}  // namespace

bool has_nccl() { return true; }
void require_nccl() {}

int nccl_version_number() {
  int version = 0;
  check(ncclGetVersion(&version), "[nccl] ncclGetVersion");
  return version;
}

std::string nccl_version() {
  const int version = nccl_version_number();
  return str("NCCL ", version / 10000, '.', version / 100 % 100, '.', version % 100);
}

std::unique_ptr<World> nccl_world(World& host, const WorldOptions& options, Transport transfers) {
  require_device(Device::cuda);
  return std::make_unique<NcclWorld>(host, options, transfers);
}

}  // namespace megalith::comm
