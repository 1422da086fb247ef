#pragma once
#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "megalith/params/param_buffer.h"

#include "tests/test_data.h"

namespace megalith::support {

/// tests/data/reference/gpt.json: values from PyTorch in float64.
class Reference {
 public:
  Reference() {
    std::ifstream file(MEGALITH_TEST_DATA "/reference/gpt.json");
    if (!file) throw std::runtime_error("tests/data/reference/gpt.json is missing");
    json_ = nlohmann::json::parse(file);
  }
  const nlohmann::json& json() const { return json_; }
  Index size(const char* name) const { return json_.at("shape").at(name).get<Index>(); }

  /// Every parameter of the buffer from the stored weights: its slice of the global tensor.
  void load_weights(ParamBuffer& params) const {
    for (Param& param : params.params()) {
      const std::vector<double> all = json_.at("weights").at(param.name());
      const TensorSlice& slice = param.spec.slice;
      const bool matrix = slice.global.rank() == 2;
      const Index rows = matrix ? slice.local[0] : 1, columns = matrix ? slice.local[1] : slice.local[0];
      const Index row0 = matrix ? slice.offset[0] : 0, column0 = slice.offset[matrix ? 1 : 0];
      const Index stride = matrix ? slice.global[1] : 0;
      std::fill_n(param.value.data<double>(), param.value.numel(), 0.0);
      for (Index r = 0; r < rows; ++r) {
        for (Index c = 0; c < columns; ++c) {
          param.value.data<double>()[r * columns + c] =
              all.at(static_cast<std::size_t>((r + row0) * stride + c + column0));
        }
      }
    }
  }

 private:
  nlohmann::json json_;
};

}  // namespace megalith::support
