#pragma once
#include "megalith/base/str.h"
#include "megalith/ops/dispatch.h"

namespace megalith::ops {

/// The memory layout of qkv [T, G (A/G + 2) D]. A row holds, for each of G kv heads, its A/G q heads, its k and its v,
/// of D numbers each. G and A are those that this rank holds.
struct QkvLayout {
  Index rows = 0;
  Index num_kv_heads = 0;
  Index q_per_kv = 0;  ///< A/G
  Index head_dim = 0;

  Index num_heads() const { return num_kv_heads * q_per_kv; }
  /// Heads of a group, and of a row, without v.
  Index normed_of_group() const { return q_per_kv + 1; }
  Index normed() const { return num_kv_heads * normed_of_group(); }
  Index group_columns() const { return (q_per_kv + 2) * head_dim; }
  Index columns() const { return num_kv_heads * group_columns(); }
};

/// Throws ShapeError unless these are valid numbers of heads.
inline void expect_heads(Index num_heads, Index num_kv_heads, std::string_view op) {
  if (num_kv_heads >= 1 && num_heads >= 1 && num_heads % num_kv_heads == 0) return;
  throw ShapeError(str("[", op, "] num_heads, num_kv_heads = ", num_heads, ", ", num_kv_heads,
                       ": both must be at least 1, and num_heads a multiple of num_kv_heads"));
}

/// The layout of an op's `qkv`. Its num_heads and num_kv_heads must fit.
template <class Args>
QkvLayout qkv_layout(const Args& args) {
  return {.rows = args.qkv.dim(0),
          .num_kv_heads = args.num_kv_heads,
          .q_per_kv = args.num_heads / args.num_kv_heads,
          .head_dim = args.qkv.dim(1) / (args.num_heads + 2 * args.num_kv_heads)};
}

/// `what` is "op.qkv".
template <class Args>
QkvLayout expect_layout(const Exec& ex, const Args& args, std::string_view what) {
  const std::string_view op = what.substr(0, what.find('.'));
  expect_float(ex, args.qkv, op);
  expect_heads(args.num_heads, args.num_kv_heads, op);
  const Index columns = dims<2>(args.qkv, what)[1], heads = args.num_heads + 2 * args.num_kv_heads;
  if (columns < 1 || columns % heads != 0)
    throw ShapeError(str("[", what, "] columns = ", columns,
                         ": must be a positive multiple of num_heads + 2 num_kv_heads = ", heads));
  return qkv_layout(args);
}

}  // namespace megalith::ops
