#include "megalith/comm/channel.h"

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/comm/call_log.h"
#include "megalith/comm/hang_verdict.h"
#include "megalith/comm/step_pattern.h"

namespace megalith::comm {
namespace {

std::uint64_t hash_of_members(std::string_view name, std::span<const int> world_ranks) {
  std::uint64_t hash = fnv1a(name);
  for (const int rank : world_ranks) hash = hash_combine(hash, static_cast<std::uint64_t>(rank));
  return hash;
}

/// A digest of what both sides must agree on. A send and its receive have different call sites and name different
/// peers.
std::uint64_t digest(const Call& call) {
  const bool message = is_message(call.op);
  const auto op = static_cast<std::uint64_t>(message ? Op::send : call.op);
  const std::uint64_t kind =
      op | static_cast<std::uint64_t>(call.dtype) << 8 | static_cast<std::uint64_t>(call.reduce) << 16 |
      (message ? 0 : static_cast<std::uint64_t>(call.root)) << 24 | static_cast<std::uint64_t>(call.priority) << 56;
  const std::uint64_t site = message ? 0 : call.site;
  return hash_combine(hash_combine(kind, static_cast<std::uint64_t>(call.count)), site ^ call.sequence << 32);
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

std::string_view name_of(Op op) {
  switch (op) {
    case Op::all_reduce:
      return "all_reduce";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_gather:
      return "all_gather";
    case Op::all_to_all:
      return "all_to_all";
    case Op::broadcast:
      return "broadcast";
    case Op::barrier:
      return "barrier";
    case Op::send:
      return "send";
    case Op::recv:
      return "recv";
    case Op::gather_rows:
      return "gather_rows";
    case Op::gather_sum_rows:
      return "gather_sum_rows";
  }
  return "?";
}

std::string_view name_of(Reduce reduce) {
  switch (reduce) {
    case Reduce::sum:
      return "sum";
    case Reduce::max:
      return "max";
    case Reduce::min:
      return "min";
  }
  return "?";
}

std::string_view name_of(Priority priority) {
  switch (priority) {
    case Priority::awaited:
      return "awaited";
    case Priority::beside_work:
      return "beside work";
    case Priority::alone:
      return "alone";
  }
  return "?";
}

std::string describe_there(const Call& call) {
  std::string what = str(name_of(call.dtype), " x ", call.count);
  if (call.priority != Priority::awaited) what += str(", ", name_of(call.priority));
  switch (call.op) {
    case Op::all_reduce:
    case Op::reduce_scatter:
      return str(name_of(call.op), '(', name_of(call.reduce), ", ", what, ") #", call.sequence);
    case Op::all_gather:
      return str("all_gather(", what, ") #", call.sequence);
    case Op::all_to_all:
      return str("all_to_all(", name_of(call.dtype), ") #", call.sequence);
    case Op::broadcast:
      return str("broadcast(", what, " from member ", call.root, ") #", call.sequence);
    case Op::barrier:
      return str("barrier() #", call.sequence);
    case Op::send:
      return str("send(", what, " to member ", call.root, ", lane ", call.lane, ") #", call.sequence);
    case Op::recv:
      return str("recv(", what, " from member ", call.root, ", lane ", call.lane, ") #", call.sequence);
    case Op::gather_rows:
    case Op::gather_sum_rows:
      return str(name_of(call.op), '(', what, " in rows of ", call.root, ") #", call.sequence);
  }
  return "?";
}

std::string describe(const Call& call) {
  return str(describe_there(call), " at ", base_name(call.file), ':', call.line);
}

bool agree(const Call& a, const Call& b) {
  return a.op == b.op && a.dtype == b.dtype && a.reduce == b.reduce && a.root == b.root && a.count == b.count &&
         a.sequence == b.sequence && a.site == b.site && a.priority == b.priority;
}

Channel::Channel(std::string name, std::vector<int> world_ranks, int rank)
    : name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      rank_(rank),
      key_(hash_of_members(name_, world_ranks_) | 1u),
      bytes_(2 * world_ranks_.size()) {}

Channel::Lane& Channel::lane_of(const Call& call) {
  for (Lane& lane : lanes_) {
    if (lane.peer == call.root && lane.lane == call.lane && lane.op == call.op) return lane;
  }
  Lane lane{call.root, call.lane, call.op};
  const int from = call.op == Op::send ? rank_ : call.root;
  const int to = call.op == Op::send ? call.root : rank_;
  lane.key = hash_combine(hash_combine(key_, static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint64_t>(to)),
                          static_cast<std::uint64_t>(call.lane)) |
             1u;
  return lanes_.emplace_back(lane);
}

RankCalls::RankCalls() : log(std::make_unique<CallLog>()) {}
RankCalls::~RankCalls() = default;

Call Channel::book(Call call, Index bytes) {
  if (calls_ != nullptr && calls_->pattern != nullptr) calls_->pattern->check(*this, call);
  Counter& counter = counters_[call.op];
  counter.calls += 1;
  counter.elements += bytes / size_of(call.dtype);
  counter.bytes += bytes;
  if (is_message(call.op)) {
    Lane& lane = lane_of(call);
    call.sequence = lane.sequence++;
    lane.hash = hash_combine(lane.hash, digest(call));
  } else {
    call.sequence = sequence_++;
    hash_ = hash_combine(hash_, digest(call));
  }
  if (calls_ != nullptr) call.entry = calls_->log->begin(*this, call);
  return call;
}

void Channel::note_done(std::uint64_t entry) {
  if (calls_ != nullptr) calls_->log->done(entry);
}

std::uint64_t Channel::agreement_term() const {
  const std::uint64_t product = key_ * hash_;
  std::uint64_t term = rank_ == 0 ? -(static_cast<std::uint64_t>(size()) - 1) * product : product;
  for (const Lane& lane : lanes_) {
    const std::uint64_t message = lane.key * lane.hash;
    term += lane.op == Op::send ? message : -message;
  }
  return term;
}

std::string Channel::where(Op op) const { return str('[', name_of(op), "] group ", name_, " of ", size(), " ranks: "); }

Ticket Channel::gather_rows(const Call& call, const GatherRows&, Stream) { refuse_rows(call.op); }
Ticket Channel::gather_sum_rows(const Call& call, const GatherSumRows&, Stream) { refuse_rows(call.op); }

void Channel::refuse_rows(Op op) const {
  throw BackendError(where(op) + "this transport does not read rows of other members: use all_to_all");
}

void Channel::throw_mismatch(const Call& mine, int my_rank, const std::string& theirs, int their_rank) const {
  const std::string rule = is_message(mine.op)
                               ? "a send and its receive must agree on dtype and count"
                               : "all members must make the same calls, at the same place, in one order";
  throw CollectiveError(str(where(mine.op), "rank ", my_rank, " called ", describe(mine), ", rank ", their_rank,
                            " called ", theirs, ": ", rule));
}

void Channel::throw_hang(const Call& call, double waited_s, const std::string& awaited) const {
  const std::string text = str(where(call.op), "rank ", world_rank(), " waited ", waited_text(waited_s), " in ",
                               describe(call), " for ", awaited);
  const Positions* const positions = calls_ == nullptr ? nullptr : calls_->log->positions();
  if (positions == nullptr) throw HangError(text);
  throw HangVerdict(text, verdict_of(*positions, world_rank(), waited_s));
}

std::string waited_text(double seconds) {
  std::ostringstream text;
  text.precision(1);
  text << std::fixed << seconds << " s";
  return text.str();
}

void RankList::add(int world_rank, const std::string& remark) {
  ranks_.push_back(world_rank);
  if (ranks_.size() > kListed) return;
  text_ += str(text_.empty() ? "" : ", ", "rank ", world_rank);
  if (!remark.empty()) text_ += str(" (", remark, ")");
}

std::string RankList::text() const {
  return ranks_.size() > kListed ? str(text_, " and ", ranks_.size() - kListed, " more") : text_;
}

}  // namespace megalith::comm
