#include "megalith/comm/peer/peer_group.h"

#include "megalith/comm/peer/row_kernels.h"

namespace megalith::comm {

std::unique_ptr<PeerGroup> PeerGroup::connect(const Group& host, const GroupUse& use) {
  auto mailboxes = open_mailboxes(host, use);
  if (mailboxes.of_members.empty()) return nullptr;
  load_kernels(host.size());
  load_row_kernels();
  const bool may_reach = use.messages == Messages::none && mailboxes.links == Links::nvlink;
  const int max_ctas = may_reach ? SymmetricTransport::max_ctas(host) : 0;
  return std::unique_ptr<PeerGroup>(new PeerGroup(host, use, max_ctas, std::move(mailboxes)));
}

PeerGroup::PeerGroup(const Group& host, const GroupUse& use, int max_ctas, Mailboxes mailboxes)
    : choice_{.members = host.size(), .messages = use.messages, .reaches_tensors = max_ctas > 0},
      mailboxes_(host.rank(), use.messages, std::move(mailboxes)),
      symmetric_(host, mailboxes_, max_ctas) {}

PeerTransport PeerGroup::transport_of(const Call& call, Stream stream) const {
  return choice_.of(call, is_capturing(stream) ? Capturing::yes : Capturing::no);
}

void PeerGroup::all_reduce(const Call& call, void* data, Stream stream) const {
  if (transport_of(call, stream) == PeerTransport::copy_engines) return mailboxes_.all_reduce(call, data, stream);
  symmetric_.all_reduce(call, data, stream);
}

void PeerGroup::reduce_scatter(const Call& call, const void* in, void* out, Stream stream) const {
  if (transport_of(call, stream) == PeerTransport::copy_engines)
    return mailboxes_.reduce_scatter(call, in, out, stream);
  symmetric_.reduce_scatter(call, in, out, stream);
}

void PeerGroup::all_gather(const Call& call, const void* in, void* out, Stream stream) const {
  const PeerTransport transport = transport_of(call, stream);
  if (transport == PeerTransport::copy_engines) return mailboxes_.all_gather(call, in, out, stream);
  if (transport == PeerTransport::kernels_in_barriers) return symmetric_.all_gather_in_barriers(call, in, out, stream);
  symmetric_.all_gather(call, in, out, stream);
}

void PeerGroup::send(const Call& call, const void* data, Stream stream) {
  mailboxes_.send(call, data, transport_of(call, stream), stream);
}

}  // namespace megalith::comm
