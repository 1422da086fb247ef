#include "megalith/params/param_names.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "megalith/base/str.h"

namespace megalith {
namespace {

using Part = StepOrder::Part;

/// Two layers' weights and a table, in buckets of a layer each.
ParamBuffer three_params(const Partition& partition) {
  const auto spec = [](const std::string& name, Index count, Index layer) {
    ParamSpec s{{name, {count}, {}, {count}}, {count}};
    s.layer = layer;
    return s;
  };
  return {{spec("table", 300, kOutsideLayers), spec("layers.0.w", 200, 0), spec("layers.1.w", 130, 1)},
          {DType::f32, DType::f32},
          partition};
}

/// "name: first element + count", in the order of a step; elements of the flat tensor.
std::vector<std::string> listed(MemoryNames names, const Tensor& flat) {
  std::ranges::stable_sort(names, {}, &NamedMemory::order);
  std::vector<std::string> lines;
  for (const NamedMemory& named : names) {
    lines.push_back(
        str(named.name, ": ", (named.begin - static_cast<const std::byte*>(flat.raw())) / 4, " + ", named.bytes / 4));
  }
  return lines;
}

TEST(MemoryNames, GradientsComeInTheOrderOfBackwardAndValuesInThatOfTheModel) {
  ParamBuffer params = three_params({});
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  MemoryNames gradients, values;
  add_names(gradients, params, params.grads(), Part::gradients, "gradient");
  add_names(values, params, params.values(), Part::parameters, "value");
  const auto line = [&](const char* what, const char* name, Index count) {
    return str(what, " of ", name, ": ", params.at(name).offset, " + ", count);
  };
  EXPECT_EQ(listed(gradients, params.grads()),
            (std::vector{line("gradient", "layers.1.w", 130), line("gradient", "layers.0.w", 200),
                         line("gradient", "table", 300)}));
  EXPECT_EQ(listed(values, params.values()), (std::vector{line("value", "table", 300), line("value", "layers.0.w", 200),
                                                          line("value", "layers.1.w", 130)}));
}

TEST(StepOrder, GoesByMicrobatchThenThroughTheLayersAsThePassDoes) {
  constexpr Index kLayers = 96, kLast = 4095;  // microbatch
  // Each comes before the next.
  const std::vector<StepOrder> forward = {forward_order(0, 0, kLayers, 0), forward_order(0, 0, kLayers, 1),
                                          forward_order(0, 1, kLayers, 0), forward_order(0, 95, kLayers, 5000),
                                          forward_order(1, 0, kLayers, 0), forward_order(kLast, 95, kLayers, 5000)};
  const std::vector<StepOrder> backward = {backward_order(0, 95, kLayers, 0), backward_order(0, 95, kLayers, 1),
                                           backward_order(0, 94, kLayers, 0), backward_order(0, 0, kLayers, 5000),
                                           backward_order(1, 95, kLayers, 0), backward_order(kLast, 0, kLayers, 5000)};
  EXPECT_TRUE(std::ranges::is_sorted(forward, std::ranges::less_equal{}));
  EXPECT_TRUE(std::ranges::is_sorted(backward, std::ranges::less_equal{}));
  EXPECT_LT(forward.back(), backward.front());
  ParamBuffer params = three_params({});
  MemoryLedger ledger(Device::cpu);
  params.allocate(ledger);
  MemoryNames gradients;
  add_names(gradients, params, params.grads(), Part::gradients, "gradient");
  for (const NamedMemory& named : gradients) EXPECT_LT(backward.back(), named.order) << named.name;
}

TEST(MemoryNames, AShardsMomentsBelongToTheParametersThatItCuts) {
  // Every element of every parameter is in one of the two shards, under its name.
  Index covered = 0;
  for (const int own : {0, 1}) {
    ParamBuffer params =
        three_params({.bucket_elements = 128, .shards = 2, .own = own, .sharding = Sharding::optimizer});
    Buffer memory(params.own_numel() * 4);
    const Tensor moment = memory.view({params.own_numel()}, DType::f32);
    MemoryNames names;
    add_names(names, params, moment, Part::moments, "first moment");
    for (const NamedMemory& named : names) {
      covered += named.bytes / 4;
      // The other way: this stretch of the shard is within the parameter.
      const Index first = (named.begin - memory.data()) / 4;
      const Param& param = params.at(named.name.substr(std::string("first moment of ").size()));
      for (const OwnRange& range : params.own_ranges()) {
        if (first < range.in_own || first >= range.in_own + range.count) continue;
        const Index in_whole = first - range.in_own + range.in_whole;
        EXPECT_GE(in_whole, param.offset);
        EXPECT_LE(in_whole + named.bytes / 4, param.offset + param.spec.held.numel());
      }
    }
  }
  EXPECT_EQ(covered, 300 + 200 + 130);
}

}  // namespace
}  // namespace megalith
