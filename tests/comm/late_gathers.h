#pragma once
#include <cstdint>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "tests/comm/wrapped_world.h"

namespace megalith::comm {

/// Gathers nothing before it is waited for: who reads before has what was there.
class LateGathers final : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  ~LateGathers() override { EXPECT_TRUE(late_.empty()) << late_.size() << " gathers were never awaited"; }
  Ticket all_gather(const Call& call, const void* in, void* out, Stream) override {
    late_.emplace(kLate + posted_, Late{call, in, out});
    return {kLate + posted_++, call.entry};
  }
  void wait(Ticket ticket, Stream stream) override {
    if (ticket.id < kLate) return inner().wait(ticket, stream);
    const auto late = late_.extract(ticket.id);
    ASSERT_FALSE(late.empty()) << "a gather is awaited twice";
    const Late& gather = late.mapped();
    const Ticket gathered = inner().all_gather(gather.call, gather.in, gather.out, stream);
    if (gathered.id >= 0) inner().wait(gathered, stream);
  }
  void cancel(Ticket ticket) noexcept override {
    if (late_.erase(ticket.id) == 0) inner().cancel(ticket);
  }

 private:
  struct Late {
    Call call;
    const void* in;
    void* out;
  };
  std::map<std::int64_t, Late> late_;
  std::int64_t posted_ = 0;
};

}  // namespace megalith::comm
