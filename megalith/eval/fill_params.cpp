#include "megalith/eval/fill_params.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/box.h"
#include "megalith/ops/init.h"

namespace megalith::eval {
namespace {

constexpr Index kStagingBytes = Index{8} << 20;

}  // namespace

void fill_params(Exec& ex, const ParamSet& params, DType stored, const ReadValues& read) {
  Buffer raw_memory, narrow_memory;
  const auto fill = [&](const Param& param) {
    if (!param.masters.whole)
      throw InternalError(str("[fill_params] ", param.name(), ": layers read a copy of its master values"));
    const Tensor there = param.without_padding(param.masters.whole);
    if (ex.device() == Device::cpu && there.dtype() == stored) return read(param.spec.slice, there);
    if (raw_memory.bytes() == 0) {
      raw_memory = Buffer(kStagingBytes);
      narrow_memory = Buffer(kStagingBytes);
    }
    const Index most = kStagingBytes / std::max(size_of(stored), size_of(there.dtype()));
    checkpoint::for_each_block(param.spec.slice, most, [&](const TensorSlice& slice, Index first) {
      const Index count = slice.local.numel();
      const Tensor raw = raw_memory.view(slice.local, stored), narrow = narrow_memory.view(slice.local, there.dtype());
      read(slice, raw);
      Exec host;
      ops::cast(host, raw, narrow);
      ex.copy(there.reshaped({there.numel()}).rows(first, count).raw(), narrow.raw(), narrow.bytes());
      ex.synchronize();
    });
  };
  for (const ParamBuffer& buffer : params.buffers()) {
    for (const Param& param : buffer.params()) fill(param);
  }
}

void copy_params(Exec& ex, const ParamSet& to, ParamSet& from) {
  for (const ParamBuffer& buffer : to.buffers()) {
    for (const Param& param : buffer.params()) {
      const Param* const source = from.find(param.name());
      if (source == nullptr || source->spec.slice.local != param.spec.slice.local)
        throw InternalError(str("[copy_params] ", param.name(), ": the other model lacks it, or has another slice"));
      const Tensor there = param.without_padding(param.value), here = source->without_padding(source->value);
      if (there.dtype() == here.dtype())
        ex.copy(there.raw(), here.raw(), there.bytes());
      else
        ops::cast(ex, here, there);
    }
  }
}

}  // namespace megalith::eval
