#include "megalith/ops/embedding.h"

#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"
#include "megalith/ops/dropout_check.h"
#include "megalith/ops/embedding_kernels.h"

namespace megalith::ops {

void embedding_forward(Exec& ex, const EmbeddingForward& args) {
  expect_float(ex, args.table, "embedding");
  const auto [held, hidden] = dims<2>(args.table, "embedding.table");
  const auto [tokens] = dims<1>(args.ids, "embedding.ids");
  expect_dtype(args.ids, DType::i32, "embedding.ids");
  expect_like(args.y, {tokens, hidden}, args.table.dtype(), "embedding.y");
  run_kernel(
      ex, {.name = "embedding", .reads = {args.ids, args.table}, .writes = {args.y}},
      [args] { cpu::embedding_forward(args); }, [args](auto&, auto stream) { cuda::embedding_forward(stream, args); });
}

void embedding_backward(Exec& ex, const EmbeddingBackward& args) {
  expect_float(ex, args.dy, "embedding_backward");
  const auto [tokens, hidden] = dims<2>(args.dy, "embedding_backward.dy");
  expect_like(args.ids, {tokens}, DType::i32, "embedding_backward.ids");
  const Index held = dims<2>(args.table_grad, "embedding_backward.table_grad")[0];
  expect_like(args.table_grad, {held, hidden}, statistics_dtype(args.dy.dtype()), "embedding_backward.table_grad");
  const Index scratch_bytes =
      ex.device() == Device::cpu ? 0 : cuda::embedding_backward_scratch_bytes(tokens, held, hidden);
  const Tensor scratch = ex.tensor({scratch_bytes}, DType::u8);
  run_kernel(
      ex,
      {.name = "embedding_backward",
       .reads = {args.ids, args.dy, args.table_grad},
       .writes = {args.table_grad},
       .scratch = scratch},
      [args] { cpu::embedding_backward(args); },
      [args, scratch](auto&, auto stream) { cuda::embedding_backward(stream, args, scratch); });
}

void add_position(Exec& ex, const AddPosition& args) {
  expect_float(ex, args.x, "add_position");
  const auto [tokens, hidden] = dims<2>(args.x, "add_position.x");
  const Index seq_len = dims<2>(args.position, "add_position.position")[0];
  expect_like(args.position, {seq_len, hidden}, args.x.dtype(), "add_position.position");
  expect_like(args.y, {tokens, hidden}, args.x.dtype(), "add_position.y");
  if (tokens > 0 && seq_len == 0) throw ShapeError(str("[add_position.position] has no rows: x has ", tokens));
  check_dropout(args.dropout, "add_position");
  run_kernel(
      ex, {.name = "add_position", .reads = {args.x, args.position, args.dropout.step_state}, .writes = {args.y}},
      [args] { cpu::add_position(args); }, [args](auto&, auto stream) { cuda::add_position(stream, args); });
}

void position_backward(Exec& ex, const Tensor& dy, const Tensor& position_grad) {
  expect_float(ex, dy, "position_backward");
  const auto [tokens, hidden] = dims<2>(dy, "position_backward.dy");
  const Index seq_len = dims<2>(position_grad, "position_backward.position_grad")[0];
  expect_like(position_grad, {seq_len, hidden}, statistics_dtype(dy.dtype()), "position_backward.position_grad");
  if (tokens > 0 && (seq_len == 0 || tokens % seq_len != 0)) {
    throw ShapeError(
        str("[position_backward.dy] rows = ", tokens, ": must be a multiple of the ", seq_len, " positions"));
  }
  run_kernel(
      ex, {.name = "position_backward", .reads = {dy, position_grad}, .writes = {position_grad}},
      [=] { cpu::position_backward(dy, position_grad); },
      [=](auto&, auto stream) { cuda::position_backward(stream, dy, position_grad); });
}

}  // namespace megalith::ops
