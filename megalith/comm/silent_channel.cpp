#include "megalith/comm/silent_channel.h"

#include "megalith/base/error.h"

namespace megalith::comm {

void SilentChannel::refuse(Op op) const {
  throw InternalError(where(op) + "a dry world only records, it cannot communicate: pass an Exec that records");
}

Ticket SilentChannel::all_reduce(const Call& call, void*, Stream) { refuse(call.op); }
Ticket SilentChannel::reduce_scatter(const Call& call, const void*, void*, Stream) { refuse(call.op); }
Ticket SilentChannel::all_gather(const Call& call, const void*, void*, Stream) { refuse(call.op); }
Ticket SilentChannel::all_to_all(const Call& call, const Parts<const void>&, const Parts<void>&, Stream) {
  refuse(call.op);
}
Ticket SilentChannel::broadcast(const Call& call, void*, Stream) { refuse(call.op); }
void SilentChannel::barrier(const Call& call, Stream) { refuse(call.op); }
Ticket SilentChannel::gather_rows(const Call& call, const GatherRows&, Stream) { refuse(call.op); }
Ticket SilentChannel::gather_sum_rows(const Call& call, const GatherSumRows&, Stream) { refuse(call.op); }
Ticket SilentChannel::post_send(const Call& call, const void*, Stream) { refuse(call.op); }
Ticket SilentChannel::post_recv(const Call& call, void*, Stream) { refuse(call.op); }
void SilentChannel::wait(Ticket, Stream) { refuse(Op::recv); }

}  // namespace megalith::comm
