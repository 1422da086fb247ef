#include "megalith/train/moment_types.h"

#include <algorithm>

#include "megalith/ops/init.h"
#include "megalith/train/state_pieces.h"

namespace megalith::train {

bool is_of_other_type(const checkpoint::Manifest& saved, std::string_view tensor, DType dtype) {
  if (!tensor.starts_with(kFirstMoment) && !tensor.starts_with(kSecondMoment)) return false;
  const checkpoint::TensorRecord* const found = saved.find(tensor);
  return found != nullptr && found->dtype != dtype && (found->dtype == DType::bf16 || dtype == DType::bf16);
}

void read_converted(checkpoint::CheckpointReader& reader, const TensorSlice& slice, const Tensor& into) {
  const DType dtype = reader.manifest().find(slice.name)->dtype;
  const Buffer memory(bytes_of(into.shape(), dtype));
  const Tensor saved = memory.view(into.shape(), dtype);
  reader.read(slice, saved);
  Exec host;
  ops::cast(host, saved, into);
}

void add_saved(checkpoint::CheckpointReader& reader, const TensorSlice& slice, checkpoint::StateDigest& digest) {
  constexpr Index kBlockBytes = Index{64} << 20;
  const DType dtype = reader.manifest().find(slice.name)->dtype;
  const Buffer memory(std::min(kBlockBytes, bytes_of(slice.local, dtype)));
  checkpoint::for_each_block(slice, kBlockBytes / size_of(dtype), [&](const TensorSlice& block, Index) {
    const Tensor values = memory.view(block.local, dtype);
    reader.read(block, values);
    digest.add_tensor(block, values);
  });
}

}  // namespace megalith::train
