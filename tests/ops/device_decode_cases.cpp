// Attention to a cache of keys and values, and rotations by given positions, on a device.
#include "megalith/ops/attention_decode.h"
#include "megalith/ops/rope.h"

#include "tests/ops/device_cases.h"

namespace megalith::ops {
namespace {

using support::Twin;

struct Sequences {
  Index heads, kv_heads, head_dim, capacity, tokens;
  std::vector<std::int32_t> lengths;  ///< before the new tokens
};

TEST_P(DeviceOps, AttentionDecode) {
  for (const auto& [heads, kv_heads, head_dim, capacity, tokens, lengths] :
       {Sequences{1, 1, 5, 1, 1, {0}}, Sequences{12, 12, 64, 300, 1, {0, 299, 128, 7}},
        Sequences{6, 2, 128, 70, 3, {0, 67, 33}}, Sequences{20, 2, 64, 70, 2, {0, 67}},
        Sequences{4, 1, 256, 40, 2, {38, 1}}, Sequences{3, 3, 34, 200, 1, {150}}}) {
    SCOPED_TRACE(::testing::Message() << heads << " heads of " << head_dim);
    const auto batch = static_cast<Index>(lengths.size()), rows = batch * tokens;
    std::vector<std::int32_t> at;
    for (Index row = 0; row < rows; ++row)
      at.push_back(lengths[static_cast<std::size_t>(row / tokens)] + static_cast<std::int32_t>(row % tokens));
    const Twin qkv = t().in({rows, (heads + 2 * kv_heads) * head_dim}, 1, 2), positions = t().ids(at);
    const Twin keys = t().in({batch, kv_heads, capacity, head_dim}, 2), values = t().in(keys.oracle.shape(), 3);
    const Twin out = t().out({rows, heads * head_dim});
    t().run([&](Exec& ex) {
      cache_append(ex, {.qkv = qkv.on(ex),
                        .positions = positions.on(ex),
                        .keys = keys.on(ex),
                        .values = values.on(ex),
                        .num_heads = heads});
      attention_decode(ex, {.qkv = qkv.on(ex),
                            .positions = positions.on(ex),
                            .keys = keys.on(ex),
                            .values = values.on(ex),
                            .out = out.on(ex),
                            .num_heads = heads});
    });
    expect_same(keys, "keys");
    expect_same(values, "values");
    expect_same(out, "out");
    t().release();
  }
}

TEST_P(DeviceOps, RopeAtGivenPositions) {
  for (const Index head_dim : {6, 64}) {
    const Twin qkv = t().in({5, 8 * head_dim}, 1, 3), positions = t().ids({30, 0, 7, 7, 1});
    const Twin table = t().out_f32({31, 2, head_dim / 2});
    t().run([&](Exec& ex) {
      rope_table(ex, {.head_dim = head_dim}, table.on(ex));
      rope(
          ex,
          {.qkv = qkv.on(ex), .table = table.on(ex), .num_heads = 4, .num_kv_heads = 2, .positions = positions.on(ex)});
    });
    expect_same(qkv, "qkv");
    t().release();
  }
}

}  // namespace
}  // namespace megalith::ops
