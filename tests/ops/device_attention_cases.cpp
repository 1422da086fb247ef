// Attention of every kind on a device: masks, lengths, documents, groups of heads. device_cases.cpp has more of the
// causal kind.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "megalith/ops/attention.h"
#include "megalith/runtime/graph.h"
#include "megalith/runtime/memory_plan.h"

#include "tests/ops/device_cases.h"

namespace megalith::ops {

struct AttentionKind {
  Index batch, seq_len, heads, kv_heads, head_dim;
  AttentionMask mask = AttentionMask::causal;
  std::vector<std::int32_t> lengths = {};  ///< none: all samples are full
  double probability = 0;
  QkvOrder order = QkvOrder::groups;
  std::vector<std::int32_t> begins = {};  ///< of documents; none: a sample is one

  Index tokens() const { return batch * seq_len; }
  Index width() const { return heads * head_dim; }
  Index columns() const { return (heads + 2 * kv_heads) * head_dim; }
  Index length(Index b) const { return lengths.empty() ? seq_len : Index{lengths[static_cast<std::size_t>(b)]}; }
  friend std::ostream& operator<<(std::ostream& to, const AttentionKind& kind) {
    to << (kind.order == QkvOrder::parts ? "in parts, " : "") << kind.batch << " samples of " << kind.seq_len << ", "
       << kind.heads << " heads in " << kind.kv_heads << " groups of " << kind.head_dim
       << (kind.mask == AttentionMask::full ? ", full" : ", causal") << ", p " << kind.probability << ", lengths";
    for (const std::int32_t length : kind.lengths) to << ' ' << length;
    return to << (kind.begins.empty() ? "" : ", of documents");
  }
};

namespace {

using Kind = AttentionKind;

using support::Twin;
using support::Twins;

// One token, parts of tiles, heads that fill a tile, do not, or are split; one group of several heads, several groups,
// also of a single sample; rows that vectors of 16 bytes cannot read; a log_sum_exp that keeps the library away; more
// tiles than the stages of shared memory.
const Kind kKinds[] = {{0, 4, 2, 1, 8},     {2, 1, 4, 2, 64},   {3, 129, 4, 2, 64},  {3, 200, 4, 4, 80},
                       {2, 200, 6, 3, 128}, {3, 129, 3, 3, 64}, {3, 256, 4, 1, 64},  {1, 200, 6, 2, 64},
                       {3, 201, 6, 3, 64},  {2, 200, 4, 2, 5},  {2, 129, 2, 1, 256}, {3, 70, 8, 2, 96},
                       {1, 600, 2, 1, 64},  {1, 450, 2, 2, 128}};

std::vector<std::vector<std::int32_t>> lengths_of(const Kind& kind) {
  const auto full = static_cast<std::int32_t>(kind.seq_len);
  std::vector<std::int32_t> mixed, short_ones;
  for (Index b = 0; b < kind.batch; ++b) {
    mixed.push_back(kind.batch == 1 ? full * 2 / 3 : b == 0 ? full : b == 1 ? full / 2 + 1 : 0);
    short_ones.push_back(b == 0 ? 1 : std::max(full - static_cast<std::int32_t>(b) * 64, 0));
  }
  return {{}, mixed, short_ones};
}

/// The tensors of both passes of a kind.
struct Tensors {
  Twin qkv, dout, lengths, begins, state, out, log_sum_exp, dqkv;

  Tensors(Twins& t, const Kind& kind)
      : qkv(t.in({kind.tokens(), kind.columns()}, 1, 2)),
        dout(t.in({kind.tokens(), kind.width()}, 2)),
        lengths(kind.lengths.empty() ? Twin() : t.ids(kind.lengths)),
        begins(kind.begins.empty() ? Twin() : t.ids(kind.begins)),
        state(t.structure(kDeviceState)),
        out(t.out({kind.tokens(), kind.width()})),
        log_sum_exp(t.out_f32({kind.batch, kind.heads, kind.seq_len})),
        dqkv(t.out({kind.tokens(), kind.columns()})) {}

  Dropout dropout(const Exec& ex, const Kind& kind) const {
    return {.probability = kind.probability,
            .seed = 9,
            .site = 2,
            .step_state = state.on(ex),
            .seq_len = kind.seq_len,
            .first_row = 2 * kind.seq_len};
  }
  void forward(Exec& ex, const Kind& kind) const {
    attention_forward(ex, {.qkv = qkv.on(ex),
                           .out = out.on(ex),
                           .log_sum_exp = log_sum_exp.on(ex),
                           .batch = kind.batch,
                           .seq_len = kind.seq_len,
                           .num_heads = kind.heads,
                           .first_head = 1,
                           .num_global_heads = kind.heads + 2,
                           .dropout = dropout(ex, kind),
                           .mask = kind.mask,
                           .num_kv_heads = kind.kv_heads,
                           .lengths = lengths.on(ex),
                           .document_begin = begins.on(ex),
                           .order = kind.order});
  }
  void backward(Exec& ex, const Kind& kind, const Twin& gradient) const {
    attention_backward(ex, {.dout = dout.on(ex),
                            .qkv = qkv.on(ex),
                            .out = out.on(ex),
                            .log_sum_exp = log_sum_exp.on(ex),
                            .dqkv = gradient.on(ex),
                            .batch = kind.batch,
                            .seq_len = kind.seq_len,
                            .num_heads = kind.heads,
                            .first_head = 1,
                            .num_global_heads = kind.heads + 2,
                            .dropout = dropout(ex, kind),
                            .mask = kind.mask,
                            .num_kv_heads = kind.kv_heads,
                            .lengths = lengths.on(ex),
                            .document_begin = begins.on(ex),
                            .order = kind.order});
  }
};

}  // namespace

void DeviceAttention::spoil_padding(const Twin& twin, const Kind& kind) {
  for (Index b = 0; b < kind.batch; ++b) {
    const Index padding = kind.seq_len - kind.length(b), first = b * kind.seq_len + kind.length(b);
    if (padding == 0) continue;
    const auto spoil = [&](Exec& ex, const Tensor& rows) {
      const std::vector<std::byte> nan(static_cast<std::size_t>(rows.bytes()), std::byte{0xff});
      ex.copy(rows.raw(), nan.data(), rows.bytes());
      ex.synchronize();
    };
    spoil(t().oracle(), twin.oracle.rows(first, padding));
    spoil(t().tested(), twin.tested.rows(first, padding));
  }
}

void DeviceAttention::expect_zero_padding(const Twin& twin, const Kind& kind, Index per_sample, const char* what) {
  const std::vector<double> values = t().read(twin.tested);
  const Index columns = static_cast<Index>(values.size()) / std::max(Index{1}, kind.tokens() * per_sample);
  Index others = 0;
  for (Index part = 0; part < kind.batch * per_sample; ++part) {
    const auto row = [&](Index i) { return values.begin() + (part * kind.seq_len + i) * columns; };
    const auto is_zero = [](double value) { return value == 0; };
    others += (kind.seq_len - kind.length(part / per_sample)) * columns -
              std::count_if(row(kind.length(part / per_sample)), row(kind.seq_len), is_zero);
  }
  EXPECT_EQ(others, 0) << what;
}

bool DeviceAttention::same_bits(const Twin& a, const Twin& b) {
  std::vector<std::byte> of_a(static_cast<std::size_t>(a.tested.bytes())), of_b(of_a.size());
  t().tested().copy(of_a.data(), a.tested.raw(), a.tested.bytes());
  t().tested().copy(of_b.data(), b.tested.raw(), b.tested.bytes());
  t().tested().synchronize();
  return of_a == of_b;
}

void DeviceAttention::expect_as_oracle(const Kind& kind) {
  SCOPED_TRACE(::testing::Message() << kind);
  const Tensors tensors(t(), kind);
  spoil_padding(tensors.qkv, kind);
  spoil_padding(tensors.dout, kind);
  t().run([&](Exec& ex) {
    tensors.forward(ex, kind);
    ex.set_determinism(Determinism::required);
    tensors.backward(ex, kind, tensors.dqkv);
  });
  const bool is_whole = kind.lengths.empty() && kind.begins.empty();
  expect_close(tensors.out, "out", is_whole ? of_attention() : GetParam().once);
  expect_close(tensors.log_sum_exp, "log_sum_exp", GetParam().log_sum_exp);
  // As in DeviceOps.Attention: out is rounded before, on a GPU P and dS on the way. Documents have few keys, so P and
  // what it multiplies, of which the rounded out is a part, are larger.
  const double of_gradient = (kind.begins.empty() ? 2 : 3) * GetParam().once;
  expect_close(tensors.dqkv, "dqkv", of_gradient);
  expect_zero_padding(tensors.out, kind, 1, "padding of out");
  expect_zero_padding(tensors.log_sum_exp, kind, kind.heads, "padding of log_sum_exp");
  expect_zero_padding(tensors.dqkv, kind, 1, "padding of dqkv");
  if (GetParam().device == Device::cpu) return t().release();  // which has one order
  const auto once_more = [&](Determinism determinism) {
    Twin gradient = t().out({kind.tokens(), kind.columns()});
    gradient.oracle = tensors.dqkv.oracle;
    t().tested().set_determinism(determinism);
    tensors.backward(t().tested(), kind, gradient);
    return gradient;
  };
  EXPECT_TRUE(same_bits(once_more(Determinism::required), tensors.dqkv)) << "dqkv a second time";
  const Twin in_any_order = once_more(Determinism::not_required);
  expect_close(in_any_order, "dqkv without determinism", of_gradient);
  expect_zero_padding(in_any_order, kind, 1, "padding of dqkv without determinism");
  t().release();
}

void DeviceAttention::expect_all_as_oracle(double probability) {
  for (Kind kind : kKinds) {
    kind.probability = probability;
    for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::full}) {
      kind.mask = mask;
      for (const std::vector<std::int32_t>& lengths : lengths_of(kind)) {
        kind.lengths = lengths;
        kind.order = QkvOrder::groups;
        expect_as_oracle(kind);
        if (kind.kv_heads == 1 || kind.kv_heads == kind.heads) continue;  // one call of a library in either order
        kind.order = QkvOrder::parts;
        expect_as_oracle(kind);
      }
    }
  }
}

namespace {

TEST_P(DeviceAttention, OfEveryKind) { expect_all_as_oracle(0); }
TEST_P(DeviceAttention, OfEveryKindWithDropout) { expect_all_as_oracle(0.2); }

/// Begins of documents of `sizes` tokens in turn, from the one that the number of the sample names.
std::vector<std::int32_t> begins_of(const Kind& kind, const std::vector<Index>& sizes) {
  std::vector<std::int32_t> begins;
  for (Index sample = 0; sample < kind.batch; ++sample) {
    Index begin = 0, turn = sample;
    for (Index i = 0; i < kind.seq_len; ++i) {
      const Index size = sizes[static_cast<std::size_t>(turn) % sizes.size()];
      if (i - begin == size) begin = i, ++turn;
      begins.push_back(static_cast<std::int32_t>(begin));
    }
  }
  return begins;
}

/// Documents of one token, that begin and end within tiles and at their edges, and that are longer than several.
TEST_P(DeviceAttention, OfDocuments) {
  for (Kind kind : kKinds) {
    for (const double probability : {0.0, 0.2}) {
      kind.probability = probability;
      for (const std::vector<Index>& sizes :
           {std::vector<Index>{1}, {3, 17, 1, 1, 30}, {64, 16, 48}, {100, 29, 1000}, {1000}}) {
        kind.begins = begins_of(kind, sizes);
        expect_as_oracle(kind);
      }
    }
  }
}

TEST_P(DeviceAttention, OfEveryKindWithoutTheLibrary) {
  if (GetParam().device == Device::cpu || GetParam().dtype == DType::f32) GTEST_SKIP() << "no library is asked";
  const Pretending pretending({.no_library_forward = true, .no_library_backward = true});
  expect_all_as_oracle(0);
}

TEST_P(DeviceAttention, OfWhatTheLibraryRefusesIsOurOwn) {
  if (GetParam().device == Device::cpu) GTEST_SKIP() << "there may be no GPU to ask";
  std::string refusals;
  for (const AttentionMask mask : {AttentionMask::causal, AttentionMask::full}) {
    for (const Index kv_heads : {8, 2, 1}) {
      for (const SampleLengths lengths : {SampleLengths::equal, SampleLengths::given}) {
        for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
          const AttentionShape shape{.dtype = GetParam().dtype,
                                     .batch = 2,
                                     .seq_len = 256,
                                     .num_heads = 8,
                                     .head_dim = 64,
                                     .mask = mask,
                                     .num_kv_heads = kv_heads,
                                     .lengths = lengths};
          const AttentionWay way = attention_way(pass, shape, Determinism::required);
          EXPECT_EQ(way.by_library, is_for_attention_library(shape) && way.refusal.empty());
          if (!way.refusal.empty())
            refusals += "\n" + std::to_string(kv_heads) + (mask == AttentionMask::full ? " full" : " causal") +
                        (lengths == SampleLengths::given ? " lengths" : "") +
                        (pass == AttentionPass::forward ? " forward: " : " backward: ") + way.refusal;
        }
      }
    }
  }
  if (!refusals.empty()) GTEST_SKIP() << "refused, and so ours:" << refusals;
}

/// Lengths shrink from launch to launch, as padding may be overwritten.
TEST_P(DeviceAttention, FromAGraphFollowsTheLengths) {
  for (const double probability : {0.0, 0.2}) {
    Kind kind{3, 200, 4, 2, 64, AttentionMask::full, {200, 129, 70}, probability};
    SCOPED_TRACE(::testing::Message() << kind);
    const Tensors tensors(t(), kind);
    const auto pass = [&](Exec& ex) {
      tensors.forward(ex, kind);
      tensors.backward(ex, kind, tensors.dqkv);
    };
    t().tested().set_determinism(Determinism::required);
    Recording recording;
    recording.begin_phase();
    Exec recorder(GetParam().device, recording);
    recorder.set_determinism(Determinism::required);
    pass(recorder);
    const MemoryPlan plan = make_plan(recording);
    const Buffer scratch(std::max(Index{1}, plan.scratch_bytes), GetParam().device);
    std::vector<std::span<const std::byte>> memory{{scratch.data(), static_cast<std::size_t>(scratch.bytes())}};
    for (const Twin& twin :
         {tensors.qkv, tensors.dout, tensors.lengths, tensors.state, tensors.out, tensors.log_sum_exp, tensors.dqkv})
      memory.emplace_back(static_cast<const std::byte*>(twin.tested.raw()),
                          static_cast<std::size_t>(twin.tested.bytes()));
    const auto in_plan = [&](const auto& body) {
      t().tested().begin(plan.phases[0], nullptr, scratch.data());
      body();
      t().tested().end();
    };
    in_plan([&] { pass(t().tested()); });  // what libraries load at their first use is not captured
    t().tested().synchronize();
    Graph graph;
    Capture capture("test", memory);
    in_plan([&] { graph = t().tested().captured(capture, [&] { pass(t().tested()); }); });
    graph.prepare(t().tested());
    for (const std::vector<std::int32_t>& lengths : {std::vector{200, 129, 70}, {128, 0, 69}, {1, 0, 64}}) {
      kind.lengths = lengths;
      const Index bytes = tensors.lengths.tested.bytes();
      t().tested().copy(tensors.lengths.tested.raw(), lengths.data(), bytes);
      std::memcpy(tensors.lengths.oracle.raw(), lengths.data(), static_cast<std::size_t>(bytes));
      graph.launch(t().tested());
      t().tested().synchronize();
      pass(t().oracle());
      expect_same(tensors.out, "out");
      expect_close(tensors.log_sum_exp, "log_sum_exp", GetParam().log_sum_exp);
      expect_close(tensors.dqkv, "dqkv", 2 * GetParam().once);
      expect_zero_padding(tensors.dqkv, kind, 1, "padding of dqkv");
    }
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
