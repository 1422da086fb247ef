#pragma once
#include <cstring>

#include "megalith/convert/hf_model.h"
#include "megalith/eval/fill_params.h"
#include "megalith/params/param_set.h"

// Whole models in memory, to and from Hugging Face folders.
namespace megalith::convert {

/// Fills the parameters of a whole model on one rank, as inference does.
inline void import_hf(io::Fs& fs, const io::Path& folder, const HfModel& hf, ParamSet& params) {
  HfReader reader(fs, folder, hf, 1234);
  reader.check_tensors();
  Exec host;
  eval::fill_params(host, params, params.policy().master,
                    [&](const TensorSlice& slice, const Tensor& values) { reader.read(slice, values); });
}

/// `params` must outlive it.
inline ModelValues values_of(const model::ModelConfig& config, const ParamSet& params) {
  return {config, params.policy().master, [&params](const TensorSlice& slice, const Tensor& values) {
            for (const ParamBuffer& buffer : params.buffers()) {
              for (const Param& param : buffer.params())
                if (param.name() == slice.name)
                  std::memcpy(values.raw(), param.masters.whole.raw(), static_cast<std::size_t>(values.bytes()));
            }
          }};
}

}  // namespace megalith::convert
