#include "megalith/nn/param_specs.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::nn {

Index shard(Index size, const comm::Group& tp, const std::string& what) {
  if (size % tp.size() != 0) {
    throw ConfigError(
        str("E_DIM_NOT_DIVISIBLE: ", what, " = ", size, ": must be divisible by the tensor-parallel size ", tp.size()));
  }
  return size / tp.size();
}

namespace {

/// This rank's share along the first dimension.
TensorSlice first_split(std::string name, const Shape& shape, const comm::Group& tp, const std::string& what) {
  const Index held = shard(shape[0], tp, what);
  Shape local = shape;
  local.set(0, held);
  return {std::move(name), shape, {held * tp.rank()}, local};
}

}  // namespace

ParamSpec units_split(const std::string& name, const Shape& shape, const comm::Group& tp, double init_std) {
  TensorSlice slice = first_split(name, shape, tp, name + " rows");
  const Shape held = slice.local;
  const Index rows_of_unit = shape.rank() == 2 ? 1 : shape[1];
  std::vector<RowRuns> matrices;
  for (Index row = 0; row < rows_of_unit; ++row) matrices.push_back({1, rows_of_unit, row});
  return {.slice = std::move(slice),
          .held = held,
          .init = Init::normal,
          .init_std = init_std,
          .first_grad = FirstGrad::overwritten,
          .matrices = std::move(matrices)};
}

ParamSpec rows_split(const std::string& name, Index rows, Index columns, const comm::Group& tp, double init_std) {
  return units_split(name, {rows, columns}, tp, init_std);
}

ParamSpec columns_split(std::string name, Index rows, Index columns, const comm::Group& tp, double init_std) {
  const Index held = shard(columns, tp, name + " columns");
  TensorSlice slice{std::move(name), {rows, columns}, {0, held * tp.rank()}, {rows, held}};
  return {.slice = std::move(slice),
          .held = {rows, held},
          .init = Init::normal,
          .init_std = init_std,
          .first_grad = FirstGrad::overwritten,
          .matrices = {{1, 1, 0}}};
}

ParamSpec vector_split(const std::string& name, const Shape& shape, const comm::Group& tp) {
  TensorSlice slice = first_split(name, shape, tp, name);
  const Shape held = slice.local;
  return {std::move(slice), held, Init::zeros, 0, Decay::no};
}

ParamSpec replicated(std::string name, const Shape& shape, const comm::Group& tp, Init init, double init_std) {
  return {TensorSlice::whole(std::move(name), shape),
          shape,
          init,
          init_std,
          shape.rank() > 1 ? Decay::yes : Decay::no,
          tp.size() > 1 ? grid::kReplicated : grid::kSharded};
}

}  // namespace megalith::nn
