#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megalith/tensor/tensor.h"

namespace megalith {

/// The first value that is not finite in a tensor of f64, f32, bf16 or f16 in host memory; none if all are finite.
std::optional<double> non_finite_value(const Tensor& values);

/// The position of a parameter in a forward pass, by its name: of embeddings 0, of layer i i + 1, of all others (the
/// last norm, heads) kAfterLayers.
Index forward_position(std::string_view parameter);
inline constexpr Index kAfterLayers = Index{1} << 40;

/// Finds the first parameter with a value that is not finite. The order is that of a forward or a backward pass.
/// Among parameters at one position it is the order of add().
class FirstNonFinite {
 public:
  enum class Pass : std::uint8_t { forward, backward };
  explicit FirstNonFinite(Pass pass = Pass::forward) : pass_(pass) {}

  /// Whether a tensor of this parameter could be the first one. If not, add() need not be called.
  bool is_wanted(std::string_view parameter) const { return !value_ || order_of(parameter) < order_; }
  /// `values`: in host memory, the whole tensor or a part of it.
  void add(std::string_view parameter, const Tensor& values);

  bool is_found() const { return value_.has_value(); }
  Index order() const { return order_; }                  ///< ascending in the order of the pass
  const std::string& parameter() const { return name_; }  ///< empty: none is found
  double value() const { return *value_; }

 private:
  Index order_of(std::string_view parameter) const {
    return pass_ == Pass::forward ? forward_position(parameter) : kAfterLayers - forward_position(parameter);
  }

  Pass pass_;
  Index order_ = 0;
  std::string name_;
  std::optional<double> value_;
};

}  // namespace megalith
