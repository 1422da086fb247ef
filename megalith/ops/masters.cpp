#include "megalith/ops/masters.h"

#include "megalith/ops/dispatch.h"
#include "megalith/ops/elementwise.h"
#include "megalith/ops/init.h"
#include "megalith/ops/masters_kernels.h"

namespace megalith::ops {

void expect_masters(const Exec& ex, const MasterValues& masters, Index numel, std::string_view op) {
  const Arguments arguments{op};
  if (!masters.is_split()) {
    arguments.like(masters.whole, {numel}, statistics_dtype(masters.whole.dtype()), "masters.whole");
    expect_float(ex, masters.whole, op);
    if (masters.copy) arguments.like(masters.copy, {numel}, DType::f16, "masters.copy");
    return;
  }
  arguments.like(masters.copy, {numel}, DType::bf16, "masters.copy");
  arguments.like(masters.low, {numel, 2}, DType::u8, "masters.low");
  arguments.like(masters.carries, {ceil_div(masters.first_carry + numel, MasterValues::kCarries)}, DType::u64,
                 "masters.carries");
}

void read_masters(Exec& ex, const MasterValues& masters, const Tensor& values) {
  const auto [numel] = dims<1>(values, "read_masters.values");
  expect_masters(ex, masters, numel, "read_masters");
  expect_dtype(values, masters.dtype(), "read_masters.values");
  if (!masters.is_split()) return copy(ex, masters.whole, values);
  run_kernel(
      ex, {.name = "read_masters", .reads = {masters.copy, masters.low, masters.carries}, .writes = {values}},
      [=] { cpu::join_masters(masters, values); },
      [=](auto&, auto stream) { cuda::join_masters(stream, masters, values); });
}

void write_masters(Exec& ex, const Tensor& values, const MasterValues& masters) {
  const auto [numel] = dims<1>(values, "write_masters.values");
  expect_masters(ex, masters, numel, "write_masters");
  expect_dtype(values, masters.dtype(), "write_masters.values");
  if (!masters.is_split()) {
    copy(ex, values, masters.whole);
    if (masters.copy) cast(ex, values, masters.copy);
    return;
  }
  run_kernel(
      ex, {.name = "write_masters", .reads = {values}, .writes = {masters.copy, masters.low, masters.carries}},
      [=] { cpu::split_masters(values, masters); },
      [=](auto&, auto stream) { cuda::split_masters(stream, values, masters); });
}

Tensor readable(Exec& ex, const MasterValues& masters, Buffer& memory) {
  if (!masters.is_split()) return masters.whole;
  if (memory.bytes() < masters.whole_bytes()) memory = Buffer(masters.whole_bytes(), ex.device(), Side::host);
  const Tensor values = memory.view({masters.numel()}, masters.dtype());
  read_masters(ex, masters, values);
  ex.synchronize();
  return values;
}

}  // namespace megalith::ops
