// Attention within the documents of a sample: the same bits as each document alone, dropout by the sample's elements,
// gradients by differences. attention_test.cpp has samples that are one document.
#include <cmath>

#include "megalith/base/philox.h"
#include "megalith/ops/attention.h"
#include "megalith/ops/kept_patch.h"

#include "tests/ops/op_test.h"

namespace megalith::ops {
namespace {

constexpr StepState kDocumentsState{.step = 4, .first_sample = 6, .loss_scale = 1};

struct PackedCase {
  Index seq_len, heads, kv_heads, head_dim;
  std::vector<std::vector<Index>> documents;  ///< tokens of each, by sample
  double probability = 0;

  Index batch() const { return std::ssize(documents); }
  Index tokens() const { return batch() * seq_len; }
  Index width() const { return heads * head_dim; }
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
  std::vector<std::int32_t> begins() const {
    std::vector<std::int32_t> all;
    for (const std::vector<Index>& sample : documents) {
      Index begin = 0;
      for (const Index size : sample) {
        all.insert(all.end(), static_cast<std::size_t>(size), static_cast<std::int32_t>(begin));
        begin += size;
      }
    }
    return all;
  }
};

/// Rows [first, first + count) of a matrix of `columns`.
Values rows_of(const Values& all, Index columns, Index first, Index count) {
  return {all.begin() + first * columns, all.begin() + (first + count) * columns};
}

class DocumentAttentionTest : public OpTest {
 protected:
  struct Result {
    Values out, log_sum_exp, dqkv;
  };
  /// begins: none for samples of one document.
  Result run(const PackedCase& c, const Values& qkv, const Values& dout, const std::vector<std::int32_t>& begins) {
    const Tensor x = put({c.tokens(), c.columns()}, qkv), out = empty({c.tokens(), c.width()}),
                 log_sum_exp = empty({c.batch(), c.heads, c.seq_len}), dqkv = empty({c.tokens(), c.columns()});
    const Tensor document_begin = begins.empty() ? Tensor() : put_ids(begins);
    const Dropout dropout{.probability = c.probability, .seed = 9, .site = 2, .step_state = put_state(kDocumentsState)};
    attention_forward(ex_, {.qkv = x,
                            .out = out,
                            .log_sum_exp = log_sum_exp,
                            .batch = c.batch(),
                            .seq_len = c.seq_len,
                            .num_heads = c.heads,
                            .first_head = 1,
                            .num_global_heads = c.heads + 2,
                            .dropout = dropout,
                            .num_kv_heads = c.kv_heads,
                            .document_begin = document_begin});
    attention_backward(ex_, {.dout = put({c.tokens(), c.width()}, dout),
                             .qkv = x,
                             .out = out,
                             .log_sum_exp = log_sum_exp,
                             .dqkv = dqkv,
                             .batch = c.batch(),
                             .seq_len = c.seq_len,
                             .num_heads = c.heads,
                             .first_head = 1,
                             .num_global_heads = c.heads + 2,
                             .dropout = dropout,
                             .num_kv_heads = c.kv_heads,
                             .document_begin = document_begin});
    return {values_of(out), values_of(log_sum_exp), values_of(dqkv)};
  }
};
MEGALITH_OPS_PRECISIONS(DocumentAttentionTest);

/// One token, blocks of queries and of keys that end within documents and at their edges, several blocks of keys.
const PackedCase kPacked{400, 4, 2, 6, {{1, 63, 64, 1, 271}, {400}, {130, 64, 6, 200}}};

/// Calls each(sample, begin, size) for every document.
template <class F>
void for_packed(const PackedCase& c, const F& each) {
  for (Index sample = 0; sample < c.batch(); ++sample) {
    Index begin = 0;
    for (const Index size : c.documents[static_cast<std::size_t>(sample)]) {
      each(sample, begin, size);
      begin += size;
    }
  }
}

TEST_P(DocumentAttentionTest, HasTheBitsOfEachDocumentAlone) {
  const PackedCase& c = kPacked;
  const Values qkv = random_values(c.tokens() * c.columns(), 1, 2), dout = random_values(c.tokens() * c.width(), 2);
  const Result packed = run(c, qkv, dout, c.begins());
  for_packed(c, [&](Index sample, Index begin, Index size) {
    const Index first = sample * c.seq_len + begin;
    const PackedCase alone{size, c.heads, c.kv_heads, c.head_dim, {{size}}};
    const Result want = run(alone, rows_of(qkv, c.columns(), first, size), rows_of(dout, c.width(), first, size), {});
    SCOPED_TRACE(testing::Message() << size << " tokens from " << begin << " of sample " << sample);
    EXPECT_EQ(rows_of(packed.out, c.width(), first, size), want.out);
    EXPECT_EQ(rows_of(packed.dqkv, c.columns(), first, size), want.dqkv);
    for (Index head = 0; head < c.heads; ++head) {
      EXPECT_EQ(rows_of(packed.log_sum_exp, 1, (sample * c.heads + head) * c.seq_len + begin, size),
                rows_of(want.log_sum_exp, 1, head * size, size));
    }
  });
}

TEST_P(DocumentAttentionTest, ReadsNothingOfOtherDocuments) {
  const PackedCase& c = kPacked;
  const Values qkv = random_values(c.tokens() * c.columns(), 1, 2), dout = random_values(c.tokens() * c.width(), 2);
  const Result clean = run(c, qkv, dout, c.begins());
  for_packed(c, [&](Index sample, Index begin, Index size) {
    const Index first = sample * c.seq_len + begin;
    Values of_nan(qkv.size(), std::nan("")), d_of_nan(dout.size(), std::nan(""));
    std::copy_n(qkv.begin() + first * c.columns(), size * c.columns(), of_nan.begin() + first * c.columns());
    std::copy_n(dout.begin() + first * c.width(), size * c.width(), d_of_nan.begin() + first * c.width());
    const Result got = run(c, of_nan, d_of_nan, c.begins());
    SCOPED_TRACE(testing::Message() << size << " tokens from " << begin << " of sample " << sample);
    EXPECT_EQ(rows_of(got.out, c.width(), first, size), rows_of(clean.out, c.width(), first, size));
    EXPECT_EQ(rows_of(got.dqkv, c.columns(), first, size), rows_of(clean.dqkv, c.columns(), first, size));
  });
}

/// The output by loops. Query i of a sample sees keys from its document's begin to i.
Values packed_output(const PackedCase& c, const Values& qkv) {
  const std::vector<std::int32_t> begins = c.begins();
  const Index sharing = c.heads / c.kv_heads;
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  const RandomSite site{.seed = 9, .step = 4, .site = 2};
  Values out(static_cast<std::size_t>(c.tokens() * c.width()), 0.0);
  const auto number = [&](Index row, Index head, Index part, Index d) {  // part: 0 q, 1 k, 2 v
    const Index place = head / sharing * (sharing + 2) + (part == 0 ? head % sharing : sharing + part - 1);
    return qkv[static_cast<std::size_t>(row * c.columns() + place * c.head_dim + d)];
  };
  for (Index row = 0; row < c.tokens(); ++row) {
    const Index sample = row / c.seq_len, i = row % c.seq_len, begin = begins[static_cast<std::size_t>(row)];
    for (Index head = 0; head < c.heads; ++head) {
      Values weights;
      double sum = 0;
      for (Index j = begin; j <= i; ++j) {
        double score = 0;
        for (Index d = 0; d < c.head_dim; ++d)
          score += number(row, head, 0, d) * number(sample * c.seq_len + j, head, 1, d);
        weights.push_back(std::exp(score * scale));
        sum += weights.back();
      }
      for (Index j = begin; j <= i; ++j) {
        const auto global = static_cast<std::uint64_t>((6 + sample) * (c.heads + 2) + 1 + head);
        const bool kept = c.probability == 0 || is_kept(site, c.probability, global, c.seq_len, i, j);
        const double weight =
            kept ? weights[static_cast<std::size_t>(j - begin)] / sum * attention_kept_scale(c.probability) : 0;
        for (Index d = 0; d < c.head_dim; ++d) {
          out[static_cast<std::size_t>(row * c.width() + head * c.head_dim + d)] +=
              weight * number(sample * c.seq_len + j, head, 2, d);
        }
      }
    }
  }
  return out;
}

TEST_P(DocumentAttentionTest, EqualsLoopsAndDifferencesWithDropout) {
  for (const double probability : {0.0, 0.2}) {
    const PackedCase c{70, 2, 1, 3, {{2, 67, 1}, {30, 40}}, probability};
    SCOPED_TRACE(testing::Message() << "p " << probability);
    const Values qkv = random_values(c.tokens() * c.columns(), 1, 2), dout = random_values(c.tokens() * c.width(), 2);
    const Result got = run(c, qkv, dout, c.begins());
    EXPECT_LT(relative_error(got.out, packed_output(c, qkv)), GetParam().tolerance);
    if (dtype() != DType::f64) continue;  // whose bits are those of the documents alone
    const Values want = numeric_gradient(qkv, [&](const Values& x) { return weighted(packed_output(c, x), dout); });
    EXPECT_LT(relative_error(got.dqkv, want), 1e-8);
  }
}

TEST_P(DocumentAttentionTest, HasTheSameBitsForAnyTeam) {
  PackedCase c = kPacked;
  c.probability = 0.2;
  expect_same_bits_for_any_team([&] {
    const Result r =
        run(c, random_values(c.tokens() * c.columns(), 1), random_values(c.tokens() * c.width(), 2), c.begins());
    Values all = r.out;
    all.insert(all.end(), r.dqkv.begin(), r.dqkv.end());
    return all;
  });
}

TEST_P(DocumentAttentionTest, NamesWhatDoesNotFit) {
  const AttentionForward good{.qkv = put({6, 24}, random_values(144, 1)),
                              .out = empty({6, 8}),
                              .log_sum_exp = empty({2, 2, 3}),
                              .batch = 2,
                              .seq_len = 3,
                              .num_heads = 2,
                              .dropout = {},
                              .document_begin = put_ids({0, 1, 1, 0, 0, 0})};
  const auto text_of = [&](const auto& change) {
    AttentionForward changed = good;
    change(changed);
    return error_text([&] { attention_forward(ex_, changed); });
  };
  EXPECT_EQ(text_of([](AttentionForward&) {}), "");
  EXPECT_EQ(text_of([&](AttentionForward& a) {
              a.document_begin = put_ids({0, 1, 1});
            }),
            "[attention.document_begin] shape = [3]: must be [6]");
  const std::string_view rule = "[attention] documents: need the causal mask, and samples without lengths";
  EXPECT_EQ(text_of([](AttentionForward& a) { a.mask = AttentionMask::full; }), rule);
  EXPECT_EQ(text_of([&](AttentionForward& a) { a.lengths = put_ids({3, 3}); }), rule);
  EXPECT_EQ(text_of([&](AttentionForward& a) {
              a.document_begin = put_ids({0, 0, 0, 1, 1, 1});
            }),
            "[attention] document_begin[3] = 1: must be 0");
  EXPECT_EQ(text_of([&](AttentionForward& a) {
              a.document_begin = put_ids({0, 0, 1, 0, 0, 0});
            }),
            "[attention] document_begin[2] = 1: must be 2, or that of the token before it, 0");
}

TEST(DocumentAttention, RunsByOurOwnKernels) {
  constexpr AttentionBuild kWithCudnn = {.has_cuda = true, .has_cudnn = true};
  AttentionShape shape{.dtype = DType::bf16, .batch = 2, .seq_len = 200, .num_heads = 3, .head_dim = 64};
  EXPECT_TRUE(is_for_attention_library(shape, kWithCudnn));
  shape.documents = DocumentMask::given;
  EXPECT_FALSE(is_for_attention_library(shape, kWithCudnn));
  const AttentionWay way = attention_way(AttentionPass::backward, shape, Determinism::required);
  EXPECT_EQ(way.kernel, "megalith");
  EXPECT_EQ(way.scratch_bytes, 2 * 3 * 200 * 4 + 2 * 200 * 4) << "the ends of documents, too";
}

}  // namespace
}  // namespace megalith::ops
