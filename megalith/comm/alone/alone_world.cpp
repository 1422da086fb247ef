#include "megalith/comm/alone/alone_world.h"

#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/alone/alone_channel.h"

namespace megalith::comm {
namespace {

class AloneWorld final : public World {
 public:
  AloneWorld(int rank, int size, Device device, const AloneLinks& links)
      : rank_(rank), size_(size), device_(device), links_(links) {
    if (device == Device::cpu) {
      open_world();
    } else {
      host_ = std::make_unique<AloneWorld>(rank, size, Device::cpu, AloneLinks{});
      adopt_world(host_->all());
    }
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view transport() const override { return "alone"; }
  bool has_all_ranks() const override { return false; }
  std::uint64_t agreement_term() const override { return 0; }
  void abort(const std::string&) override {}

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> world_ranks, int rank,
                                const GroupUse& use) override {
    return std::make_shared<AloneChannel>(std::move(name), std::move(world_ranks), rank, device_, links_, use.messages);
  }

 private:
  int rank_, size_;
  Device device_;
  AloneLinks links_;
  std::unique_ptr<AloneWorld> host_;
};

}  // namespace

std::unique_ptr<World> alone_world(int rank, int size, Device device, const AloneLinks& links) {
  if (rank < 0 || rank >= size) throw InternalError(str("[alone_world] rank ", rank, " is outside a world of ", size));
  require_device(device);
  return std::make_unique<AloneWorld>(rank, size, device, links);
}

}  // namespace megalith::comm
