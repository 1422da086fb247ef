#include "megalith/comm/silent_channel.h"

#include "megalith/base/error.h"

namespace megalith::comm {

void SilentChannel::refuse(Op op) const {
  throw InternalError(where(op) + "a dry world only records, it cannot communicate: pass an Exec that records");
}

void SilentChannel::all_reduce(const Call& call, void*) { refuse(call.op); }
void SilentChannel::reduce_scatter(const Call& call, const void*, void*) { refuse(call.op); }
void SilentChannel::all_gather(const Call& call, const void*, void*) { refuse(call.op); }
void SilentChannel::all_to_all(const Call& call, const void*, std::span<const Index>, void*, std::span<const Index>) {
  refuse(call.op);
}
void SilentChannel::broadcast(const Call& call, void*) { refuse(call.op); }
void SilentChannel::barrier(const Call& call) { refuse(call.op); }
Ticket SilentChannel::post_send(const Call& call, const void*) { refuse(call.op); }
Ticket SilentChannel::post_recv(const Call& call, void*) { refuse(call.op); }
void SilentChannel::wait(Ticket) { refuse(Op::recv); }

}  // namespace megalith::comm
