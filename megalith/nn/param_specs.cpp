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

ParamSpec rows_split(std::string name, Index rows, Index columns, const comm::Group& tp, double init_std) {
  const Index held = shard(rows, tp, name + " rows");
  TensorSlice slice{std::move(name), {rows, columns}, {held * tp.rank(), 0}, {held, columns}};
  return {.slice = std::move(slice),
          .held = {held, columns},
          .init = Init::normal,
          .init_std = init_std,
          .first_grad = FirstGrad::overwritten};
}

ParamSpec columns_split(std::string name, Index rows, Index columns, const comm::Group& tp, double init_std) {
  const Index held = shard(columns, tp, name + " columns");
  TensorSlice slice{std::move(name), {rows, columns}, {0, held * tp.rank()}, {rows, held}};
  return {.slice = std::move(slice),
          .held = {rows, held},
          .init = Init::normal,
          .init_std = init_std,
          .first_grad = FirstGrad::overwritten};
}

ParamSpec vector_split(std::string name, Index size, const comm::Group& tp) {
  const Index held = shard(size, tp, name);
  TensorSlice slice{std::move(name), {size}, {held * tp.rank()}, {held}};
  return {std::move(slice), {held}, Init::zeros, 0, Decay::no};
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
