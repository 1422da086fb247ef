#include "megalith/ops/masters.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "megalith/base/philox.h"
#include "megalith/ops/adamw.h"
#include "megalith/ops/cpu/kernels.h"
#include "megalith/ops/muon.h"

#include "tests/ops/op_test.h"
#include "tests/support/split_masters.h"

namespace megalith::ops {
namespace {

/// Split masters on the CPU.
class Masters : public ::testing::Test {
 protected:
  Masters() { ex_.poison_new_tensors(); }

  Tensor words(Index count, const std::function<std::uint32_t(Index)>& word) {
    const Tensor tensor = ex_.tensor({count}, DType::f32);
    for (Index i = 0; i < count; ++i) tensor.data<float>()[i] = std::bit_cast<float>(word(i));
    return tensor;
  }
  template <class T>
  Tensor put(const std::vector<T>& values, DType dtype) {
    const Tensor tensor = ex_.tensor({static_cast<Index>(values.size() * sizeof(T)) / size_of(dtype)}, dtype);
    std::memcpy(tensor.raw(), values.data(), values.size() * sizeof(T));
    return tensor;
  }
  Tensor read(const MasterValues& masters) {
    const Tensor values = ex_.tensor({masters.numel()}, masters.dtype());
    read_masters(ex_, masters, values);
    return values;
  }
  Exec ex_;
};

void expect_same_bits(const Tensor& got, const Tensor& want) {
  ASSERT_EQ(got.bytes(), want.bytes());
  const auto *a = static_cast<const std::uint32_t*>(got.raw()), *b = static_cast<const std::uint32_t*>(want.raw());
  for (Index i = 0; i < got.bytes() / 4; ++i) ASSERT_EQ(a[i], b[i]) << std::hex << i;
}

/// Words of which many lie in the middle between two bf16, and some are NaN.
std::uint32_t middling(Index i) {
  const std::uint32_t word = RandomSite{.seed = 5}.word(static_cast<std::uint64_t>(i));
  const std::uint32_t tie = (word & 0xffff0000u) | 0x8000u;
  return i % 7 == 0 ? tie : i % 11 == 0 ? word | 0x7f800000u : word;
}

TEST_F(Masters, ComeBackWithAllTheirBits) {
  for (const Index n : {Index{0}, Index{1}, Index{63}, Index{64}, Index{1025}, Index{20000}}) {
    for (const Index first : {Index{0}, Index{1}, Index{63}}) {
      SCOPED_TRACE(::testing::Message() << n << " from carry " << first);
      const Tensor values = words(n, middling);
      const MasterValues masters = support::empty_split(ex_, n, first);
      write_masters(ex_, values, masters);
      expect_same_bits(read(masters), values);
      for (Index i = 0; i < n; ++i)
        ASSERT_EQ(masters.copy.data<bfloat16>()[i].bits, bfloat16(values.data<float>()[i]).bits);
    }
  }
}

TEST_F(Masters, EveryInstructionSetHasTheSameHalves) {
  constexpr Index kCount = 100'003;
  std::vector<float> values(kCount), joined(kCount);
  for (Index i = 0; i < kCount; ++i)  // a part without carries, as most are
    values[static_cast<std::size_t>(i)] = std::bit_cast<float>(middling(i < 1000 ? 154 * i + 1 : i));
  std::vector<bfloat16> copy(kCount);
  std::vector<std::uint16_t> low(kCount);
  for (const cpu::Isa isa : {cpu::Isa::baseline, cpu::Isa::avx2, cpu::Isa::avx512}) {
    if (!cpu::is_available(isa)) continue;
    SCOPED_TRACE(static_cast<int>(isa));
    const cpu::OptimizerKernels<float>& kernels = cpu::kernels<float>(isa).optimizer;
    for (const auto& [begin, end] : {std::pair<Index, Index>{0, 1}, {1, 8}, {8, 1001}, {1001, kCount}}) {
      const auto at = static_cast<std::size_t>(begin);
      const bool splits = kernels.split(&values[at], &copy[at], &low[at], end - begin);
      const bool joins = kernels.join(&copy[at], &low[at], &joined[at], end - begin);
      bool any = false;
      for (std::size_t i = at; i < static_cast<std::size_t>(end); ++i) {
        const SplitF32 want = SplitF32::of(values[i]);
        ASSERT_EQ(copy[i].bits, want.copy) << i;
        ASSERT_EQ(low[i], want.low) << i;
        any = any || want.needs_carry();
        if (want.needs_carry()) continue;
        ASSERT_EQ(std::bit_cast<std::uint32_t>(joined[i]), std::bit_cast<std::uint32_t>(values[i])) << i;
      }
      EXPECT_EQ(splits, any);
      EXPECT_EQ(joins, any);
    }
  }
}

TEST_F(Masters, APartIsWrittenWithoutItsNeighbours) {
  constexpr Index kCount = 300;
  const Tensor before = words(kCount, middling), after = words(kCount, [](Index i) { return middling(i + 1000); });
  const MasterValues masters = support::split_of(ex_, before);
  for (Index begin = 5, count = 1; begin + count < kCount; begin += count, count += 7) {
    write_masters(ex_, after.rows(begin, count), masters.rows(begin, count));
    expect_same_bits(read(masters.rows(0, begin + count)).rows(5, begin + count - 5), after.rows(5, begin + count - 5));
    expect_same_bits(read(masters).rows(begin + count, kCount - begin - count),
                     before.rows(begin + count, kCount - begin - count));
    expect_same_bits(read(masters.rows(0, 5)), before.rows(0, 5));
  }
}

TEST_F(Masters, WholeOnesAreCopiedAndTheirCopyIsRounded) {
  const Tensor values = words(1000, [](Index i) { return 0x3f000000u + static_cast<std::uint32_t>(i) * 977; });
  const MasterValues masters{.whole = ex_.tensor({1000}, DType::f32), .copy = ex_.tensor({1000}, DType::f16)};
  write_masters(ex_, values, masters);
  expect_same_bits(read(masters), values);
  for (Index i = 0; i < 1000; ++i)
    EXPECT_EQ(masters.copy.data<float16>()[i].bits, float16(values.data<float>()[i]).bits);
  Buffer memory;
  EXPECT_EQ(readable(ex_, masters, memory).raw(), masters.whole.raw());
  EXPECT_EQ(memory.bytes(), 0);
  const MasterValues split = support::split_of(ex_, values);
  expect_same_bits(readable(ex_, split, memory), values);
  expect_same_bits(readable(ex_, split.rows(3, 10), memory), values.rows(3, 10));
}

/// 30 updates by gradients of many sizes, so that masters meet ties: `update` is called with whole and split masters.
template <class Update>
void expect_one_update_for_both(Exec& ex, const Tensor& start, Update&& update) {
  const MasterValues whole{.whole = ex.tensor(start.shape(), DType::f32)}, split = support::split_of(ex, start);
  write_masters(ex, start, whole);
  const Tensor values = ex.tensor(start.shape(), DType::f32);
  for (std::int64_t step = 0; step < 30; ++step) {
    StepVerdict verdict{.apply = step == 7 ? 0 : 1, .factor = 0.5, .learning_rate = 0x1p-9, .update = step};
    update(whole, Tensor(&verdict, {Index{sizeof verdict}}, DType::u8), 0);
    update(split, Tensor(&verdict, {Index{sizeof verdict}}, DType::u8), 1);
    read_masters(ex, split, values);
    SCOPED_TRACE(step);
    expect_same_bits(values, whole.whole);
  }
  Index ties = 0;
  for (const float value : values.span<float>()) ties += SplitF32::of(value).needs_carry() ? 1 : 0;
  EXPECT_GT(ties, 0);
}

TEST_F(Masters, BothFormsHaveTheBitsOfOneAdamW) {
  constexpr Index n = 40'000 + 37;  // pieces of several threads, blocks, and a rest
  std::vector<std::uint8_t> decays(static_cast<std::size_t>(ceil_div(n, kDecayGroup)));
  for (std::size_t i = 0; i < decays.size(); ++i) decays[i] = i % 3 != 0;
  const Tensor table = put(std::vector{RoundedParam::of(TensorSlice::whole("w", {n}), 0, 9)}, DType::u8),
               groups = put(std::vector<std::int32_t>(decays.size(), 0), DType::i32),
               put_decays = put(decays, DType::u8), grad = ex_.tensor({n}, DType::f32);
  for (const DType moments : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(name_of(moments));
    std::array<Tensor, 2> m, v;
    for (Tensor* const tensor : {&m[0], &m[1], &v[0], &v[1]}) {
      *tensor = ex_.tensor({n}, moments);
      std::memset(tensor->raw(), 0, static_cast<std::size_t>(tensor->bytes()));
    }
    for (Index i = 0; i < n; ++i) grad.data<float>()[i] = static_cast<float>(std::ldexp(1 + i % 13, -(i % 40)));
    // No decay and a rate of a power of two: some masters stay where they are, in the middle between two bf16.
    const Tensor start =
        words(n, [](Index i) { return i % 5 == 0 ? (0x3f008000u + (i % 64 << 16)) : 0x3c000000u + 7 * i; });
    expect_one_update_for_both(ex_, start, [&](const MasterValues& masters, const Tensor& verdict, std::size_t form) {
      MomentRounding rounding;
      if (moments == DType::bf16) rounding = {.params = table, .param_of = groups};
      adamw(ex_, {.masters = masters,
                  .m = m[form],
                  .v = v[form],
                  .rounding = rounding,
                  .grad = grad,
                  .decays = put_decays,
                  .verdict = verdict,
                  .eps = 1,
                  .weight_decay = 0x1p-3});
    });
  }
}

TEST_F(Masters, BothFormsHaveTheBitsOfOneMuonUpdate) {
  constexpr Index n = 40'000 + 37;
  const Tensor decays =
                   put(std::vector<std::uint8_t>(static_cast<std::size_t>(ceil_div(n, kDecayGroup)), 0), DType::u8),
               update = ex_.tensor({n}, DType::f32);
  for (Index i = 0; i < n; ++i) update.data<float>()[i] = static_cast<float>(std::ldexp(1 + i % 13, -(i % 40)));
  const Tensor start =
      words(n, [](Index i) { return i % 5 == 0 ? (0x3f008000u + (i % 64 << 16)) : 0x3c000000u + 7 * i; });
  expect_one_update_for_both(ex_, start, [&](const MasterValues& masters, const Tensor& verdict, std::size_t) {
    muon_update(ex_, {.masters = masters, .update = update, .decays = decays, .verdict = verdict, .weight_decay = 0.1});
  });
}

TEST_F(Masters, SameBitsForAnyTeam) {
  constexpr Index n = 70'000;
  const Tensor start = words(n, middling);
  expect_same_bits_for_any_team([&] {
    const MasterValues masters = support::empty_split(ex_, n, 17);  // threads share words of carries
    write_masters(ex_, start, masters);
    expect_same_bits(read(masters), start);
    Values all;
    for (const bfloat16 copy : masters.copy.span<bfloat16>()) all.push_back(copy.bits);
    return all;
  });
}

TEST_F(Masters, ErrorsNameTheTensorThatDoesNotFit) {
  const Tensor values = ex_.tensor({100}, DType::f32);
  const MasterValues masters = support::split_of(ex_, values);
  const auto error_of = [&](const MasterValues& wrong) {
    return error_text([&] { read_masters(ex_, wrong, values); });
  };
  MasterValues wrong = masters;
  wrong.copy = values;
  EXPECT_EQ(error_of(wrong), "[read_masters.masters.copy] dtype = f32: must be bf16");
  wrong = masters;
  wrong.carries = masters.carries.rows(0, 1);
  EXPECT_EQ(error_of(wrong), "[read_masters.masters.carries] shape = [1]: must be [2]");
  EXPECT_EQ(error_of(masters.rows(0, 99)), "[read_masters.masters.copy] shape = [99]: must be [100]");
  EXPECT_EQ(error_of({}), "[read_masters.masters.whole] there is no tensor: must have shape [100]");
  EXPECT_EQ(error_of({.whole = values, .copy = masters.copy}), "[read_masters.masters.copy] dtype = bf16: must be f16");
  EXPECT_EQ(error_text([&] { write_masters(ex_, ex_.tensor({100}, DType::f64), masters); }),
            "[write_masters.values] dtype = f64: must be f32");
}

}  // namespace
}  // namespace megalith::ops
