#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// Another world, whose groups' channels are each within a WrappingChannel(group).
template <class WrappingChannel>
class WrappedWorld final : public World {
 public:
  explicit WrappedWorld(World& world) : world_(world) { adopt_world(world.all()); }
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  std::string_view transport() const override { return world_.transport(); }
  void abort(const std::string& reason) override { world_.abort(reason); }
  std::string failure() const override { return world_.failure(); }
  void check_health() override { world_.check_health(); }
  Index device_bytes() const override { return world_.device_bytes(); }

 protected:
  std::shared_ptr<Channel> open(std::string name, std::vector<int> ranks, int, const GroupUse& use) override {
    return std::make_shared<WrappingChannel>(world_.group(std::move(name), std::move(ranks), use));
  }

 private:
  World& world_;
};

}  // namespace megalith::comm
