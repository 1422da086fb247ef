#include "megalith/train/step_values.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megalith/checkpoint/box.h"
#include "megalith/ops/masters.h"

namespace megalith::train {
namespace {

std::array<Index, Shape::kMaxRank> index_of_element(const Shape& shape, Index element) {
  std::array<Index, Shape::kMaxRank> index{};
  for (int d = shape.rank(); d-- > 0;) {
    index[static_cast<std::size_t>(d)] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

/// Relative to `scale`; infinite for what is no number on one side.
double relative(double by, double scale) {
  if (by == 0) return 0;
  return std::isnan(by) || scale == 0 ? std::numeric_limits<double>::infinity() : by / scale;
}

/// A distance from the run in fp32 that is not finite shows no rounding: it widens nothing.
double widened(double band, double distance) {
  return std::isfinite(distance) ? std::max(band, kOfRounding * distance) : band;
}

double distance_of(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)) ? 0.0 : std::abs(a - b); }

ValueDifference number_difference(const char* name, double StepValues::*number, const ComparedValues& values,
                                  double band) {
  const double a = values.a.*number, b = values.b.*number;
  if (values.wide != nullptr) band = widened(band, relative(distance_of(a, values.wide->*number), std::abs(a)));
  return {.name = name, .shape = {}, .a = a, .b = b, .largest = relative(distance_of(a, b), std::abs(a)), .band = band};
}

/// The largest difference of two wholes. An element that no rank has is NaN.
ValueDifference tensor_difference(const std::string& name, const StepValues::Whole& a, const StepValues::Whole& b,
                                  double band) {
  ValueDifference found{.name = name, .shape = a.shape, .band = band};
  double scale = 0, largest = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    if (std::isfinite(a.values[i])) scale = std::max(scale, std::abs(a.values[i]));
    const double by = distance_of(a.values[i], b.values[i]);
    if (by <= largest || std::isnan(largest)) continue;
    largest = by;
    found.at = index_of_element(a.shape, static_cast<Index>(i));
    found.a = a.values[i];
    found.b = b.values[i];
  }
  found.largest = relative(largest, scale);
  return found;
}

enum class ValueKind : std::uint8_t { gradient, moment, value };

ValueKind kind_of(std::string_view name) {
  if (name.starts_with(kGradientOf)) return ValueKind::gradient;
  return name.starts_with(kFirstMoment) || name.starts_with(kSecondMoment) ? ValueKind::moment : ValueKind::value;
}

double band_of(ValueKind kind, Index step, const VerifyBands& bands) {
  if (kind == ValueKind::gradient) return step == 1 ? bands.first_gradients : bands.gradients;
  return kind == ValueKind::moment && step == 1 ? bands.first_moments : bands.state;
}

}  // namespace

void StepValues::put_piece(const StatePiece& piece) {
  std::vector<double> values(static_cast<std::size_t>(piece.values.numel()));
  Exec host;
  Buffer memory;
  const Tensor there = ops::readable(host, piece.values, memory);
  dispatch_float(there.dtype(), "StepValues", [&]<class T>() {
    const T* const from = there.data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = converted<double>(from[i]);
  });
  const std::lock_guard lock(mutex_);
  Whole& whole = tensors_[piece.slice.name];
  const auto count = static_cast<std::size_t>(piece.slice.global.numel());
  if (whole.values.empty()) {
    whole.shape = piece.slice.global;
    whole.values.assign(count, std::numeric_limits<double>::quiet_NaN());
    whole.is_there.assign(count, 0);
  }
  const checkpoint::Runs runs(checkpoint::box_of(piece.slice), {{}, piece.slice.global});
  for (Index run = 0, from = 0; run < runs.count(); ++run) {
    for (Index i = 0; i < runs.length(); ++i, ++from) {
      const Index element = runs.start(run) + i;
      const auto to = static_cast<std::size_t>(element);
      const double value = values[static_cast<std::size_t>(from)];
      if (whole.is_there[to] == 0) {
        whole.values[to] = value;
        whole.is_there[to] = 1;
      } else if (distance_of(whole.values[to], value) != 0 && !unequal_replicas_) {
        unequal_replicas_ =
            ValueDifference{.name = piece.slice.name,
                            .shape = piece.slice.global,
                            .at = index_of_element(piece.slice.global, element),
                            .a = whole.values[to],
                            .b = value,
                            .largest = relative(distance_of(whole.values[to], value), std::abs(whole.values[to]))};
      }
    }
  }
}

void StepValues::put(Engine& engine) {
  for (const StateTensors tensors : {StateTensors::gradients, StateTensors::values_and_moments}) {
    for (const StatePiece& piece : updated_pieces(engine.stage().params(), engine.optimizers(), tensors))
      put_piece(piece);
  }
}

const StepValues::Whole* StepValues::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void StepValues::clear() {
  tensors_.clear();
  unequal_replicas_.reset();
}

std::vector<ValueDifference> compare_values(const ComparedValues& values, Index step, const VerifyBands& bands,
                                            std::map<std::string, double>& largest) {
  const auto& [a, b, wide] = values;
  std::vector<ValueDifference> different;
  const auto add = [&](const char* kind, ValueDifference found) {
    double& seen = largest[kind];
    seen = std::max(seen, found.largest);
    if (found.largest > found.band) different.push_back(std::move(found));
  };
  add("loss", number_difference("loss", &StepValues::loss, values, step == 1 ? bands.first_loss : bands.losses));
  add("gradient norm",
      number_difference("gradient norm", &StepValues::grad_norm, values, step == 1 ? bands.first_norm : bands.norms));
  for (int grid = 0; const StepValues* const side : {&a, &b}) {
    if (auto replicas = side->unequal_replicas()) {
      replicas->replicas_of = grid;
      different.push_back(*replicas);
    }
    ++grid;
  }
  using enum ValueKind;
  for (const ValueKind kind : {gradient, moment, value}) {
    const double band = band_of(kind, step, bands);
    if (band == 0) continue;
    for (const auto& [name, whole] : a.tensors()) {
      if (kind_of(name) != kind) continue;
      const StepValues::Whole* const other = b.find(name);
      if (other == nullptr || other->shape != whole.shape) {
        different.push_back({.name = name, .shape = whole.shape, .largest = std::numeric_limits<double>::infinity()});
        continue;
      }
      ValueDifference found = tensor_difference(name, whole, *other, band);
      if (wide != nullptr && found.largest > band) {
        if (const StepValues::Whole* const exact = wide->find(name))
          found.band = widened(band, tensor_difference(name, whole, *exact, band).largest);
      }
      add(kind == gradient ? "gradients" : "state", std::move(found));
    }
  }
  return different;
}

double distance_between(const StepValues::Whole& a, const StepValues::Whole& b) {
  if (a.shape != b.shape) return std::numeric_limits<double>::infinity();
  return tensor_difference("", a, b, 0).largest;
}

ChangeRatio ratio_of_changes(const ValueChange& a, const ValueChange& b, double band) {
  if (a.after.shape != b.after.shape) return {};
  double scale = 0, product = 0, square = 0;
  for (const double value : a.after.values)
    if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
  const auto change = [](const ValueChange& of, std::size_t i) { return of.after.values[i] - of.before.values[i]; };
  std::vector<std::size_t> different;
  for (std::size_t i = 0; i < a.after.values.size(); ++i) {
    if (distance_of(a.after.values[i], b.after.values[i]) <= band * scale) continue;
    different.push_back(i);
    product += change(a, i) * change(b, i);
    square += change(a, i) * change(a, i);
  }
  ChangeRatio ratio{.elements = std::ssize(different), .times = square == 0 ? 0 : product / square};
  constexpr double kOfChange = 1e-3;
  if (!std::ranges::all_of(different, [&](std::size_t i) {
        return std::abs(change(b, i) - ratio.times * change(a, i)) <= kOfChange * std::abs(change(b, i));
      }))
    ratio.times = 0;
  return ratio;
}

}  // namespace megalith::train
