#include "megalith/ops/echo_routing.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/echo_routing_kernels.h"

namespace megalith::ops {
namespace {

/// S of a tensor [R S].
Index slots_of_rank(const Tensor& src, Index ranks, std::string_view op) {
  const Index all = dims<1>(src, op)[0];
  if (ranks < 1 || all % ranks != 0)
    throw ShapeError(str('[', op, "] slots, ranks = ", all, ", ", ranks, ": must be a multiple of the ranks"));
  return all / ranks;
}

void check_lists(const CloneLists& lists, Index ranks, Index experts, Index slots) {
  constexpr Arguments kList{"list_clones"};
  const Index all = ranks * slots;
  kList.like(lists.counts, {2}, DType::i32, "counts");
  kList.like(lists.sources, {slots, 2}, DType::i32, "sources");
  kList.like(lists.begin, {slots + 1}, DType::i32, "begin");
  kList.like(lists.wants, {slots}, DType::i32, "wants");
  kList.like(lists.sum_begin, {experts / ranks + 1}, DType::i32, "sum_begin");
  kList.like(lists.places, {all, 2}, DType::i32, "places");
  kList.like(lists.image, {all}, DType::i32, "image");
  kList.like(lists.slots, {all}, DType::i32, "slots");
  kList.like(lists.sent, {all}, DType::i32, "sent");
  kList.like(lists.received, {slots}, DType::i32, "received");
  kList.like(lists.returned, {slots}, DType::i32, "returned");
  kList.like(lists.arrived, {all}, DType::i32, "arrived");
}

}  // namespace

void count_pairs(Exec& ex, const CountPairs& args) {
  constexpr Arguments kCount{"count_pairs"};
  const Index ranks = kCount.dims<3>(args.experts, "experts")[0];
  expect_dtype(args.experts, DType::i32, "count_pairs.experts");
  kCount.like(args.counts, {ranks, kCount.dims<2>(args.counts, "counts")[1]}, DType::i32, "counts");
  run_kernel(
      ex, {.name = "count_pairs", .reads = {args.experts}, .writes = {args.counts}}, [args] { cpu::count_pairs(args); },
      [args](auto&, auto stream) { cuda::count_pairs(stream, args); });
}

void rewrite_choices(Exec& ex, const RewriteChoices& args) {
  constexpr Arguments kRewrite{"rewrite_choices"};
  const Index ranks = kRewrite.dims<3>(args.experts, "experts")[0];
  kRewrite.like(args.columns, args.experts.shape(), DType::i32, "columns");
  const Index all = ranks * slots_of_rank(args.src, ranks, "rewrite_choices.src");
  kRewrite.like(args.src, {all}, DType::i32, "src");
  kRewrite.like(args.take, {ranks, all}, DType::i32, "take");
  if (args.num_experts % ranks != 0)
    throw ShapeError(
        str("[rewrite_choices] num_experts = ", args.num_experts, ": must be a multiple of the ", ranks, " ranks"));
  const Index numbers = ex.device() == Device::cpu
                            ? cpu::rewrite_scratch(args.num_experts, all)
                            : cuda::RewriteScratch(args.experts, args.num_experts, all).numbers();
  const Tensor scratch = ex.tensor({numbers}, DType::i32);
  run_kernel(
      ex,
      {.name = "rewrite_choices",
       .reads = {args.experts, args.src, args.take},
       .writes = {args.columns},
       .scratch = scratch},
      [args, scratch] { cpu::rewrite_choices(args, scratch); },
      [args, scratch](auto&, auto stream) { cuda::rewrite_choices(stream, args, scratch); });
}

void list_clones(Exec& ex, const ListClones& args) {
  const Index slots = slots_of_rank(args.src, args.ranks, "list_clones.src");
  expect_dtype(args.src, DType::i32, "list_clones.src");
  if (args.rank < 0 || args.rank >= args.ranks || args.num_experts % args.ranks != 0)
    throw ShapeError(str("[list_clones] rank, ranks, num_experts = ", args.rank, ", ", args.ranks, ", ",
                         args.num_experts, ": must be one of the ranks, which divide the experts"));
  if (args.ranks > kMaxEchoRanks || slots > kMaxEchoSlots)
    throw ShapeError(str("[list_clones] ranks, slots of a rank = ", args.ranks, ", ", slots, ": must be at most ",
                         kMaxEchoRanks, ", ", kMaxEchoSlots));
  check_lists(args.lists, args.ranks, args.num_experts, slots);
  const CloneLists& to = args.lists;
  run_kernel(
      ex,
      {.name = "list_clones",
       .reads = {args.src},
       .writes = {to.counts, to.sources, to.begin, to.wants, to.sum_begin, to.places, to.image, to.slots, to.sent,
                  to.received, to.returned, to.arrived}},
      [args] { cpu::list_clones(args); }, [args](auto&, auto stream) { cuda::list_clones(stream, args); });
}

CloneLists make_clone_lists(Exec& ex, Index ranks, Index experts, Index slots) {
  const auto i32 = [&](const Shape& shape) { return ex.tensor(shape, DType::i32); };
  const Index all = ranks * slots;
  return {.counts = i32({2}),
          .sources = i32({slots, 2}),
          .begin = i32({slots + 1}),
          .wants = i32({slots}),
          .sum_begin = i32({experts / ranks + 1}),
          .places = i32({all, 2}),
          .image = i32({all}),
          .slots = i32({all}),
          .sent = i32({all}),
          .received = i32({slots}),
          .returned = i32({slots}),
          .arrived = i32({all})};
}

void add_echo_totals(Exec& ex, const AddEchoTotals& args) {
  constexpr Arguments kTotals{"add_echo_totals"};
  kTotals.like(args.totals, {kEchoTotals}, DType::f64, "totals");
  const Index ranks = kTotals.dims<1>(args.plan.load_after, "plan.load_after")[0];
  kTotals.like(args.stages.load, {ranks}, DType::i32, "stages.load");
  kTotals.like(args.stages.wanted, {ranks}, DType::i32, "stages.wanted");
  run_kernel(
      ex,
      {.name = "add_echo_totals",
       .reads = {args.plan.load_after, args.plan.plan_dropped, args.plan.cap, args.plan.src, args.stages.load,
                 args.stages.wanted, args.totals},
       .writes = {args.totals}},
      [args] { cpu::add_echo_totals(args); }, [args](auto&, auto stream) { cuda::add_echo_totals(stream, args); });
}

void add_rows(Exec& ex, const AddRows& args) {
  constexpr Arguments kAdd{"add_rows"};
  const auto [experts, width] = kAdd.dims<2>(args.grads, "grads");
  kAdd.like(args.rows, {kAdd.dims<2>(args.rows, "rows")[0], width}, args.grads.dtype(), "rows");
  kAdd.like(args.begin, {experts + 1}, DType::i32, "begin");
  expect_dtype(args.order, DType::i32, "add_rows.order");
  expect_wide(ex, args.grads, "add_rows", "grads");
  run_kernel(
      ex, {.name = "add_rows", .reads = {args.rows, args.begin, args.order, args.grads}, .writes = {args.grads}},
      [args] { cpu::add_rows(args); }, [args](auto&, auto stream) { cuda::add_rows(stream, args); });
}

}  // namespace megalith::ops
