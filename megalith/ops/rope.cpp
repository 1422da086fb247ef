#include "megalith/ops/rope.h"

#include <algorithm>
#include <limits>

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/qkv_layout.h"
#include "megalith/ops/rope_kernels.h"

namespace megalith::ops {
namespace {

void refuse(std::string_view what, double value, std::string_view rule) {
  throw ShapeError(str("[rope_table.", what, "] = ", value, ": must be ", rule));
}

void check_frequencies(const RopeFrequencies& f) {
  if (f.head_dim < 2 || f.head_dim % 2 != 0)
    throw ShapeError(str("[rope_table.head_dim] = ", f.head_dim, ": must be even, as rotary embedding turns pairs"));
  if (!(f.theta > 0)) refuse("theta", f.theta, "above 0");
  if (f.scaling == RopeScaling::none) return;
  if (!(f.factor > 0)) refuse("factor", f.factor, "above 0");
  if (f.scaling == RopeScaling::linear) return;
  if (!(f.low_freq_factor > 0)) refuse("low_freq_factor", f.low_freq_factor, "above 0");
  if (!(f.high_freq_factor > f.low_freq_factor))
    refuse("high_freq_factor", f.high_freq_factor, str("above low_freq_factor, which is ", f.low_freq_factor));
  if (!(f.original_max_position > 0)) refuse("original_max_position", f.original_max_position, "above 0");
}

void expect_positions(const Rope& args, Index tokens, Index positions) {
  if (args.seq_len < 1 || args.first_row < 0 || args.start_position < 0)
    throw ShapeError(str("[rope] seq_len, first_row, start_position = ", args.seq_len, ", ", args.first_row, ", ",
                         args.start_position, ": seq_len must be at least 1, the others at least 0"));
  constexpr Index kMax = std::numeric_limits<std::int32_t>::max();  // positions are computed in 32 bits on a GPU
  if (args.seq_len > kMax || args.first_row + tokens > kMax)
    throw ShapeError(str("[rope] seq_len, first_row + rows = ", args.seq_len, ", ", args.first_row + tokens,
                         ": must be below 2^31"));
  const Index needed = args.start_position + std::min(args.seq_len, args.first_row + tokens);
  if (needed <= positions) return;
  throw ShapeError(str("[rope.table] positions = ", positions, ": must be at least ", needed,
                       ", start_position + the rows of a sample"));
}

}  // namespace

void rope_table(Exec& ex, const RopeFrequencies& frequencies, const Tensor& table) {
  check_frequencies(frequencies);
  const Index positions = dims<3>(table, "rope_table.table")[0];
  expect_shape(table, {positions, 2, frequencies.head_dim / 2}, "rope_table.table");
  run_kernel(
      ex, {.name = "rope_table", .reads = {}, .writes = {table}}, [=] { cpu::rope_table(frequencies, table); },
      [=](auto&, auto stream) { cuda::rope_table(stream, frequencies, table); });
}

void rope(Exec& ex, const Rope& args) {
  expect_float(ex, args.qkv, "rope");
  expect_heads(args.num_heads, args.num_kv_heads, "rope");
  const auto [tokens, width] = dims<2>(args.qkv, "rope.qkv");
  const auto [positions, two, half] = dims<3>(args.table, "rope.table");
  const DType dtype = args.qkv.dtype();
  expect_like(args.table, {positions, 2, half}, statistics_dtype(dtype), "rope.table");
  expect_like(args.qkv, {tokens, (args.num_heads + 2 * args.num_kv_heads) * 2 * half}, dtype, "rope.qkv");
  if (args.positions)
    expect_like(args.positions, {tokens}, DType::i32, "rope.positions");
  else
    expect_positions(args, tokens, positions);
  const Index head_dim = 2 * half;
  if (args.attended == QkvOrder::parts && ex.device() == Device::cuda && !can_reorder(dtype, width, head_dim)) {
    throw ShapeError(str("[rope.attended] = parts, of qkv of ", width, " columns in ", name_of(dtype), ", heads of ",
                         head_dim, ": must be 16-bit, of at most 16384 columns, with heads of a multiple of 16"));
  }
  run_kernel(
      ex, {.name = "rope", .reads = {args.qkv, args.table, args.positions}, .writes = {args.qkv}},
      [args] { cpu::rope(args); }, [args](auto&, auto stream) { cuda::rope(stream, args); });
}

}  // namespace megalith::ops
