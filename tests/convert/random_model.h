#pragma once
#include <vector>

#include "megalith/base/philox.h"
#include "megalith/model/chunk.h"
#include "megalith/params/param_set.h"

namespace megalith::convert {

/// All parameters of a model on one rank, with random values.
struct RandomModel {
  explicit RandomModel(const model::ModelConfig& config, std::uint64_t seed = 1, DType dtype = DType::f32)
      : params(model::declare_whole_model(config), Policy{dtype, dtype}, ParamContents::values) {
    params.allocate(ledger);
    const RandomSite random{.seed = seed};
    std::uint64_t n = 0;
    for (ParamBuffer& buffer : params.buffers()) {
      for (Param& param : buffer.params()) {
        const Tensor values = param.without_padding(param.value);
        dispatch_wide(dtype, "test", [&]<class T>() {
          for (T& value : values.span<T>())
            value = static_cast<T>(static_cast<float>(random.word(n++)) * 0x1p-32f - 0.5f);
        });
      }
    }
  }
  float at(const char* name, Index i) { return params.at(name).value.data<float>()[i]; }
  std::vector<double> all_values() const {
    std::vector<double> all;
    for (const ParamBuffer& buffer : params.buffers()) {
      for (const Param& param : buffer.params()) {
        dispatch_wide(param.value.dtype(), "test", [&]<class T>() {
          for (const T value : param.without_padding(param.value).template span<T>())
            all.push_back(static_cast<double>(value));
        });
      }
    }
    return all;
  }

  MemoryLedger ledger{Device::cpu};
  ParamSet params;
};

}  // namespace megalith::convert
