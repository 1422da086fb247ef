#include "megalith/train/imported_model.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "megalith/checkpoint/shard_io.h"
#include "megalith/io/save_protocol.h"
#include "megalith/model/chunk.h"
#include "megalith/tensor/memory.h"

namespace megalith::train {
namespace {

/// Whole parameters, one at a time.
class OneParam {
 public:
  OneParam(std::vector<ParamSpec> specs, DType dtype, const ReadValues& read, RuleValues by_rule)
      : specs_(std::move(specs)), dtype_(dtype), read_(read), by_rule_(by_rule) {
    Index most = 0;
    for (const ParamSpec& spec : specs_) most = std::max(most, bytes_of(spec.slice.global, dtype));
    memory_ = Buffer(most);
  }

  std::vector<checkpoint::PieceInfo> pieces() const {
    std::vector<checkpoint::PieceInfo> pieces;
    for (const ParamSpec& spec : specs_) pieces.push_back({spec.slice, dtype_});
    return pieces;
  }
  Tensor elements(std::size_t param, Index first, Index count) {
    const TensorSlice& slice = specs_[param].slice;
    const Tensor values = memory_.view(slice.global, dtype_);
    if (held_ != param) {
      if (specs_[param].update == Update::by_rule && by_rule_ == RuleValues::zeros)
        std::memset(values.raw(), 0, static_cast<std::size_t>(values.bytes()));
      else
        read_(slice, values);
      held_ = param;
    }
    return values.reshaped({values.numel()}).rows(first, count);
  }

 private:
  std::vector<ParamSpec> specs_;
  DType dtype_;
  const ReadValues& read_;
  RuleValues by_rule_;
  Buffer memory_;
  std::optional<std::size_t> held_;
};

}  // namespace

checkpoint::Digest128 save_imported_model(const config::RunPlan& plan, const DataIdentity& identity, io::Fs& fs,
                                          const io::Path& folder, const ReadValues& read, RuleValues by_rule) {
  constexpr Index kBlockBytes = Index{64} << 20;
  OneParam params(model::declare_whole_model(plan.model), plan.train.policy().master, read, by_rule);
  const io::Path staging = io::begin_save(fs, folder, 0);
  try {
    std::vector<checkpoint::ShardReport> reports = write_vocabulary(fs, staging, identity);
    reports.push_back(checkpoint::write_shard(
        fs, staging, checkpoint::shard_file_name(0), params.pieces(), kBlockBytes,
        [&](std::size_t piece, Index first, Index count) { return params.elements(piece, first, count); }));
    const checkpoint::Manifest manifest = checkpoint::build_manifest(state_at_start(plan, identity), reports);
    io::publish(fs, staging, checkpoint::manifest_text(manifest));
    return manifest.digest;
  } catch (...) {
    io::abandon(fs, staging);
    throw;
  }
}

}  // namespace megalith::train
