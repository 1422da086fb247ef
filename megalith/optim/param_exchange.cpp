#include "megalith/optim/param_exchange.h"

namespace megalith::optim {

ParamExchange::ParamExchange(const ParamSet& params, const comm::Mesh& mesh) {
  for (const ParamBuffer& buffer : params.trained()) {
    reducers_.emplace_back(buffer, mesh);
    if (buffer.is_sharded()) gatherers_.emplace_back(buffer, mesh.reduction_group({.grid = buffer.grid()}));
  }
}

void ParamExchange::begin() {
  for (GradReducer& reducer : reducers_) reducer.begin();
  for (ParamGatherer& gatherer : gatherers_) gatherer.begin();
}

void ParamExchange::start(Exec& ex, Index layer) {
  for (ParamGatherer& gatherer : gatherers_) gatherer.start(ex, layer);
}

void ParamExchange::layer_needed(Exec& ex, Index layer) {
  for (ParamGatherer& gatherer : gatherers_) gatherer.layer_needed(ex, layer);
}

void ParamExchange::gather_all(Exec& ex) {
  for (ParamGatherer& gatherer : gatherers_) gatherer.gather_all(ex);
}

void ParamExchange::begin_pass(GradReducer::Pass pass) {
  for (GradReducer& reducer : reducers_) reducer.begin_pass(pass);
}

void ParamExchange::layer_begins(Exec& ex, Index layer) {
  for (GradReducer& reducer : reducers_) reducer.layer_begins(ex, layer);
}

void ParamExchange::layer_done(Exec& ex, Index layer) {
  for (GradReducer& reducer : reducers_) reducer.layer_done(ex, layer);
}

void ParamExchange::send_rest(Exec& ex) {
  for (GradReducer& reducer : reducers_) reducer.send_rest(ex);
}

}  // namespace megalith::optim
