#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/ops/attention_kernels.h"
#include "megalith/ops/cpu/dropout.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/cpu/parallel.h"
#include "megalith/ops/cpu/product.h"
#include "megalith/ops/init_kernels.h"
#include "megalith/ops/kept_patch.h"
#include "megalith/ops/matmul_kernels.h"
#include "megalith/tensor/memory.h"

// A head is walked in tiles of kQueries x kKeys scores, which live on the stack (64 KiB each in f32). Tiles above the
// diagonal are skipped. Products read q, k, v and write their gradients in the packed layout, by their strides.
// Measured at D = 64, S = 256 with oneDNN on AVX2: 32 queries lose 8 % of the products' speed, 128 compute 20 % more
// scores. The tiles of a document begin at its first token, so it is computed as a sample of its own.
//
// Tensors of 16 bits are widened into scratch as a whole. Every block of queries reads each element of k and v, and the
// sums over key blocks must stay in f32 until they are done. Scratch is 4 T A D f32 forward, 8 backward. Where the CPU
// multiplies bf16, products of whole samples (without lengths or documents) read q, k, v and dout as they are, and
// probabilities and gradients of scores rounded to bf16.

namespace megalith::ops::cpu {
namespace {

constexpr Index kQueries = 64, kKeys = 256;  // kKeys a multiple of kQueries: no row of a tile is wholly masked

/// The dropout of the probabilities, whose P(drop) is rounded.
template <class Args>
std::optional<ResolvedDropout> resolved(const Args& args) {
  auto dropout = resolve(args.dropout);
  if (!dropout) return dropout;
  dropout->stream.attention_threshold = attention_dropout_threshold(args.dropout.probability);
  dropout->stream.kept_scale = attention_kept_scale(args.dropout.probability);
  return dropout;
}

/// Where the parts of one (document, head) are, what it attends to, and the dropout of its probabilities.
template <class T>
struct Head {
  Index seq_len, head_dim;
  Index length;  // tokens of the document, or those of the sample that are not padding
  VisibleKeys visible;
  Index token, out_token;          // elements from one token to the next, in qkv and in out
  Index q, k, v, out, statistics;  // first element in qkv, in out, in log_sum_exp
  T scale;
  const DropoutStream* dropout;
  std::uint64_t first_block;  // of random words, of the head (ops/kept_patch.h)
  Index first_token;          // of the document in its sample
};

/// Tokens of a sample that attend to each other: [begin, begin + length). A sample without documents is one.
struct Document {
  Index begin, length;
};

const std::int32_t* begins_of(const Tensor& document_begin, Index sample, Index seq_len) {
  return document_begin.data<std::int32_t>() + sample * seq_len;
}

template <class Args>
void check_begins(const Args& args) {
  if (!args.document_begin) return;
  for (Index sample = 0; sample < args.batch; ++sample) {
    const std::int32_t* begins = begins_of(args.document_begin, sample, args.seq_len);
    for (Index i = 0; i < args.seq_len; ++i) {
      if (begins[i] == i || (i > 0 && begins[i] == begins[i - 1])) continue;
      throw InputError(str("[attention] document_begin[", sample * args.seq_len + i, "] = ", begins[i], ": must be ", i,
                           i > 0 ? str(", or that of the token before it, ", begins[i - 1]) : ""));
    }
  }
}

/// The length of a sample, at which its padding begins.
template <class Args>
Index length_of(const Args& args, Index sample) {
  if (!args.lengths) return args.seq_len;
  return std::clamp(Index{args.lengths.template data<std::int32_t>()[sample]}, Index{0}, args.seq_len);
}

/// `head`: the number of a q head on this rank.
template <class T, class Args>
Head<T> head_at(const Args& args, const std::optional<ResolvedDropout>& dropout, Index sample, Document document,
                Index head) {
  const Index width = args.out.dim(1), head_dim = width / args.num_heads;
  const Index row = sample * args.seq_len + document.begin;
  const Index token = args.qkv.dim(1), sharing = args.num_heads / kv_heads_of(args);
  const Index groups = kv_heads_of(args), group = head / sharing;
  const auto at = [&](Index in_group) {
    const Index place = group * (sharing + 2) + in_group;
    return row * token + head_dim * (args.order == QkvOrder::parts ? place_in_parts(place, sharing, groups) : place);
  };
  const std::uint64_t first_sample =
      dropout ? dropout->first_sample + dropout->first_row / static_cast<std::uint64_t>(args.seq_len) : 0;
  const std::uint64_t global =
      (first_sample + static_cast<std::uint64_t>(sample)) * static_cast<std::uint64_t>(args.num_global_heads) +
      static_cast<std::uint64_t>(args.first_head + head);
  return {.seq_len = args.seq_len,
          .head_dim = head_dim,
          .length = document.length,
          .visible = args.mask == AttentionMask::causal ? VisibleKeys::up_to_query : VisibleKeys::all,
          .token = token,
          .out_token = width,
          .q = at(head % sharing),
          .k = at(sharing),
          .v = at(sharing + 1),
          .out = row * width + head * head_dim,
          .statistics = (sample * args.num_heads + head) * args.seq_len + document.begin,
          .scale = static_cast<T>(1.0 / std::sqrt(static_cast<double>(head_dim))),
          .dropout = dropout ? &dropout->stream : nullptr,
          .first_block = global * kept_head_blocks(args.seq_len),
          .first_token = document.begin};
}

struct Block {
  Index first, count;
  Index end() const { return first + count; }
};

/// A tile of scores as an operand: itself, or rounded.
template <class T, class S>
class ScoreOperand {
 public:
  GemmOperand<S> of(const T* scores, Index rows, Index columns) {
    if constexpr (kIsItself) {
      return {scores, kKeys, 1};
    } else {
      const auto round = kernels<S>().elementwise.round;
      S* const rounded = reinterpret_cast<S*>(rounded_);
      for (Index r = 0; r < rows; ++r) round(scores + r * kKeys, rounded + r * kKeys, columns);
      return {rounded, kKeys, 1};
    }
  }

 private:
  static constexpr bool kIsItself = std::is_same_v<T, S>;
  alignas(64) std::byte rounded_[kIsItself ? 1 : kQueries * kKeys * sizeof(S)];  // bytes: nothing sets them to 0
};

/// Calls tile(first_key, count) for the key blocks that a block of queries sees.
template <class T, class Tile>
void for_key_blocks(const Head<T>& head, Block queries, const Tile& tile) {
  const Index end = head.visible == VisibleKeys::all ? head.length : queries.end();
  for (Index key = 0; key < end; key += kKeys) tile(key, std::min(kKeys, end - key));
}

template <class T>
AttentionTile<T> tile_at(const Head<T>& head, T* scores, Block queries, Block keys) {
  return {.scores = scores,
          .stride = kKeys,
          .rows = queries.count,
          .columns = keys.count,
          .first_query = queries.first,
          .first_key = keys.first,
          .seq_len = head.seq_len,
          .scale = head.scale,
          .dropout = head.dropout,
          .head_block = head.first_block,
          .first_token = head.first_token,
          .visible = head.visible};
}

/// Sets rows x head_dim elements to 0.
template <class T>
void zero_rows(T* data, Index rows, const Head<T>& head, Index row_stride) {
  for (Index r = 0; r < rows; ++r) std::fill_n(data + r * row_stride, head.head_dim, T{0});
}

/// One block of queries of one head, none of them padding. It does the softmax over the key blocks with a running
/// maximum and sum per row.
template <class T, class S>
void forward_queries(const AttentionForward& args, const Head<T>& head, Block queries) {
  alignas(64) T scores[kQueries * kKeys];
  ScoreOperand<T, S> probs;
  T max[kQueries], sum[kQueries], correction[kQueries];
  const auto [first, rows] = queries;
  std::fill_n(max, rows, -std::numeric_limits<T>::infinity());
  std::fill_n(sum, rows, T{0});
  const S* qkv = args.qkv.data<S>();
  const S *q = qkv + head.q, *k = qkv + head.k, *v = qkv + head.v;
  T* out = args.out.data<T>() + head.out + first * head.out_token;
  const auto scale_row = kernels<T>().elementwise.scale;
  for_key_blocks(head, queries, [&](Index key, Index keys) {
    multiply<S>({rows, keys, head.head_dim}, {q + first * head.token, head.token, 1},
                {k + key * head.token, 1, head.token}, {scores, kKeys, T{0}});
    const AttentionTile<T> tile = tile_at(head, scores, queries, {key, keys});
    kernels<T>().softmax.attention_forward(tile, max, sum, correction);
    if (key > 0) {
      for (Index r = 0; r < rows; ++r) scale_row(out + r * head.out_token, correction[r], head.head_dim);
    }
    multiply<S>({rows, head.head_dim, keys}, probs.of(scores, rows, keys), {v + key * head.token, head.token, 1},
                {out, head.out_token, key > 0 ? T{1} : T{0}});
  });
  T* log_sum_exp = args.log_sum_exp.data<T>() + head.statistics + first;
  for (Index r = 0; r < rows; ++r) {
    scale_row(out + r * head.out_token, T{1} / sum[r], head.head_dim);
    log_sum_exp[r] = max[r] + std::log(sum[r]);
  }
}

/// Whether gradients are the first terms of a sum, which are written, or are added to it.
enum class Sum : bool { begun, continued };

/// Adds to the gradients of one block of queries of one head, none of them padding. It writes dq of its own rows, and
/// adds to dk and dv of the keys that it sees. `dout_operand`: dout as products read it.
template <class T, class S>
void backward_queries(const AttentionBackward& args, const S* dout_operand, const Head<T>& head, Block block,
                      Sum keys_sum) {
  alignas(64) T scores[kQueries * kKeys];
  alignas(64) T dprobs[kQueries * kKeys];
  ScoreOperand<T, S> rounded_probs, rounded_dscores;
  T delta[kQueries];
  const auto [first, rows] = block;
  const Index dim = head.head_dim, token = head.token, out_token = head.out_token;
  const S* qkv = args.qkv.data<S>();
  const S *q = qkv + head.q, *k = qkv + head.k, *v = qkv + head.v;
  T* dqkv = args.dqkv.data<T>();
  T *dq = dqkv + head.q, *dk = dqkv + head.k, *dv = dqkv + head.v;
  const T* dout = args.dout.data<T>() + head.out + first * out_token;
  const T* out = args.out.data<T>() + head.out + first * out_token;
  const T* log_sum_exp = args.log_sum_exp.data<T>() + head.statistics + first;
  for (Index r = 0; r < rows; ++r) delta[r] = kernels<T>().gemm.dot(dout + r * out_token, out + r * out_token, dim);
  const T keys_beta = keys_sum == Sum::begun ? T{0} : T{1};
  for_key_blocks(head, block, [&](Index key, Index keys) {
    const GemmOperand<S> queries{q + first * token, token, 1}, key_rows{k + key * token, token, 1};
    const GemmOperand<S> value_rows{v + key * token, token, 1};
    const GemmOperand<S> dout_rows{dout_operand + head.out + first * out_token, out_token, 1};
    multiply<S>({rows, keys, dim}, queries, key_rows.transposed(), {scores, kKeys, T{0}});
    multiply<S>({rows, keys, dim}, dout_rows, value_rows.transposed(), {dprobs, kKeys, T{0}});
    AttentionTile<T> tile = tile_at(head, scores, block, {key, keys});
    tile.dprobs = dprobs;
    kernels<T>().softmax.attention_backward(tile, log_sum_exp, delta);
    const GemmOperand<S> probs = rounded_probs.of(scores, rows, keys);
    const GemmOperand<S> dscores = rounded_dscores.of(dprobs, rows, keys);
    multiply<S>({keys, dim, rows}, probs.transposed(), dout_rows, {dv + key * token, token, keys_beta});
    multiply<S>({keys, dim, rows}, dscores.transposed(), queries, {dk + key * token, token, keys_beta});
    multiply<S>({rows, dim, keys}, dscores, key_rows, {dq + first * token, token, key > 0 ? T{1} : T{0}});
  });
}

Index query_blocks(Index tokens) { return ceil_div(tokens, kQueries); }

/// The rows [first, first + rows) of a head, some of which may be padding.
template <class T, class S>
void forward_rows(const AttentionForward& args, const Head<T>& head, Index first, Index rows) {
  const Index attending = std::clamp(head.length - first, Index{0}, rows);
  if (attending > 0) forward_queries<T, S>(args, head, {first, attending});
  const Index padding = first + attending;
  zero_rows(args.out.data<T>() + head.out + padding * head.out_token, rows - attending, head, head.out_token);
  std::fill_n(args.log_sum_exp.data<T>() + head.statistics + padding, rows - attending, T{0});
}

/// Calls block(document, rows) for the blocks of queries that begin at tokens [first, end) of a sample. The blocks of a
/// document begin every kQueries tokens, and their rows are numbered from its first one.
template <class F>
void for_blocks_of_documents(const std::int32_t* begins, Index seq_len, Block tokens, const F& block) {
  for (Index token = tokens.first; token < tokens.end(); ++token) {
    const Index begin = begins[token], row = token - begin;
    if (row % kQueries != 0) continue;
    Index rows = 1;
    while (rows < kQueries && token + rows < seq_len && begins[token + rows] == begin) ++rows;
    block(Document{begin, row + rows}, Block{row, rows});
  }
}

/// One task per (sample, head, kQueries tokens). The longest rows come first, so that the threads end together.
template <class T, class S>
void forward_heads(const AttentionForward& args) {
  const auto dropout = resolved(args);
  const Index blocks = query_blocks(args.seq_len), heads = args.batch * args.num_heads;
  parallel_for(blocks * heads, args.qkv.numel(), [&](Index i) {
    const Index first = (blocks - 1 - i / heads) * kQueries, sample = i % heads / args.num_heads;
    const Index number = i % args.num_heads, rows = std::min(kQueries, args.seq_len - first);
    if (!args.document_begin) {
      const Document whole{0, length_of(args, sample)};
      return forward_rows<T, S>(args, head_at<T>(args, dropout, sample, whole, number), first, rows);
    }
    for_blocks_of_documents(begins_of(args.document_begin, sample, args.seq_len), args.seq_len, {first, rows},
                            [&](Document document, Block queries) {
                              forward_queries<T, S>(args, head_at<T>(args, dropout, sample, document, number), queries);
                            });
  });
}

/// dk and dv of one group and dq of its heads, of one document. In each head the last block of queries comes first,
/// because it sees every key. That of the first head writes, the others add.
template <class T, class S>
void backward_group(const AttentionBackward& args, const S* dout_operand, const std::optional<ResolvedDropout>& dropout,
                    Index sample, Document document, Index group) {
  const Index sharing = args.num_heads / kv_heads_of(args);
  for (Index i = 0; i < sharing; ++i) {
    const Head<T> head = head_at<T>(args, dropout, sample, document, group * sharing + i);
    const Index blocks = query_blocks(head.length), padding = args.document_begin ? 0 : args.seq_len - head.length;
    for (Index block = blocks - 1; block >= 0; --block) {
      const Index first = block * kQueries, rows = std::min(kQueries, head.length - first);
      backward_queries(args, dout_operand, head, {first, rows},
                       i == 0 && block == blocks - 1 ? Sum::begun : Sum::continued);
    }
    T* dqkv = args.dqkv.data<T>() + head.length * head.token;
    zero_rows(dqkv + head.q, padding, head, head.token);
    zero_rows(dqkv + head.k, padding, head, head.token);
    zero_rows(dqkv + head.v, padding, head, head.token);
  }
}

/// Calls each(document) for the documents of a sample, the last one first.
template <class Args, class F>
void for_documents(const Args& args, Index sample, const F& each) {
  if (!args.document_begin) return each(Document{0, length_of(args, sample)});
  const std::int32_t* begins = begins_of(args.document_begin, sample, args.seq_len);
  for (Index end = args.seq_len; end > 0; end = begins[end - 1]) {
    const Index begin = begins[end - 1];
    each(Document{begin, end - begin});
  }
}

/// One task per (sample, group), so that the sums over queries and over heads keep one order.
template <class T, class S>
void backward_heads(const AttentionBackward& args, const S* dout_operand) {
  const auto dropout = resolved(args);
  const Index groups = kv_heads_of(args);
  parallel_for(args.batch * groups, args.qkv.numel(), [&](Index i) {
    for_documents(args, i / groups, [&](Document document) {
      backward_group<T>(args, dout_operand, dropout, i / groups, document, i % groups);
    });
  });
}

/// Allocates f32 tensors from the scratch, one after the other.
class Widened {
 public:
  explicit Widened(const Tensor& scratch) : next_(static_cast<std::byte*>(scratch.raw())) {}
  /// A tensor of the shape of `like`. Its contents are undefined.
  Tensor space(const Tensor& like) {
    const Tensor wide(next_, like.shape(), DType::f32);
    next_ += wide_bytes(like);
    return wide;
  }
  Tensor copy(const Tensor& tensor) {
    const Tensor wide = space(tensor);
    cast(tensor, wide);
    return wide;
  }
  static Index wide_bytes(const Tensor& like) { return round_up(like.numel() * Index{sizeof(float)}, kAlignment); }

 private:
  std::byte* next_;
};

bool is_16_bit(const Tensor& tensor) { return size_of(tensor.dtype()) == 2; }

/// Whether products read the tensors of bf16 as they are. Documents and samples of unequal length have products of all
/// sizes, and the library would make a kernel for most of them.
template <class Args>
bool multiplies_bf16(const Args& args) {
  return args.qkv.dtype() == DType::bf16 && has_bf16_product() && !args.document_begin && !args.lengths;
}

}  // namespace

Index attention_forward_scratch_bytes(const AttentionForward& args) {
  return is_16_bit(args.qkv) ? Widened::wide_bytes(args.qkv) + Widened::wide_bytes(args.out) : 0;
}

Index attention_backward_scratch_bytes(const AttentionBackward& args) {
  return is_16_bit(args.qkv) ? 2 * Widened::wide_bytes(args.qkv) + 2 * Widened::wide_bytes(args.out) : 0;
}

void attention_forward(const AttentionForward& args, const Tensor& scratch) {
  check_begins(args);
  dispatch_float(args.qkv.dtype(), "attention_forward", [&]<class T>() {
    if constexpr (std::is_same_v<T, Arithmetic<T>>) {
      forward_heads<T, T>(args);
    } else {
      Widened widened(scratch);
      AttentionForward wide = args;
      wide.out = widened.space(args.out);
      if (multiplies_bf16(args)) {
        forward_heads<float, bfloat16>(wide);
      } else {
        wide.qkv = widened.copy(args.qkv);
        forward_heads<float, float>(wide);
      }
      cast(wide.out, args.out);
    }
  });
}

void attention_backward(const AttentionBackward& args, const Tensor& scratch) {
  check_begins(args);
  dispatch_float(args.qkv.dtype(), "attention_backward", [&]<class T>() {
    if constexpr (std::is_same_v<T, Arithmetic<T>>) {
      backward_heads<T>(args, args.dout.template data<T>());
    } else {
      Widened widened(scratch);
      AttentionBackward wide = args;
      wide.out = widened.copy(args.out);
      wide.dout = widened.copy(args.dout);
      wide.dqkv = widened.space(args.dqkv);
      if (multiplies_bf16(args)) {
        backward_heads<float>(wide, args.dout.template data<bfloat16>());
      } else {
        wide.qkv = widened.copy(args.qkv);
        backward_heads<float>(wide, wide.dout.template data<float>());
      }
      cast(wide.dqkv, args.dqkv);
    }
  });
}

}  // namespace megalith::ops::cpu
