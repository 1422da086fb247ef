#include "megalith/ops/cuda/grouped_product.h"

namespace megalith::ops::cuda {

void prepare_grouped_product(Exec&) {}
bool can_run_grouped_product(Exec&, DType, Index, Index) { return false; }
bool grouped_product(Exec&, Stream, const TiledForward&, const TileGroups&, int) { return false; }
bool grouped_product(Exec&, Stream, const TiledUp&, const TileGroups&, int) { return false; }
bool grouped_product(Exec&, Stream, const TiledInputGrad&, const TileGroups&, int) { return false; }
bool grouped_product(Exec&, Stream, const TiledDownInputGrad&, const TileGroups&, int) { return false; }
bool grouped_product(Exec&, Stream, const TiledWeightGrad&, const TileGroups&, int) { return false; }

}  // namespace megalith::ops::cuda
