#pragma once
#include "megalith/config/keys.h"
#include "megalith/config/run_plan.h"

namespace megalith::config {

/// Sets what nobody asked for.
template <class T, class Value>
void set_default(std::optional<T>& key, const Value& value) {
  if (!key) key = value;
}

/// Whether a recipe defines the model that it trains.
enum class ModelShape : std::uint8_t { unknown, known };

/// Every rule that ties several keys together; those of one key alone are its Bounds. Rules on broken keys, and on a
/// model that is not known, are left out: what was put in their place is not what the user wrote.
void check_rules(const RunPlan& plan, ModelShape shape, const BrokenKeys& broken, Problems& out);

}  // namespace megalith::config
