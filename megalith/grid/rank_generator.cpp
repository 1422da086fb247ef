#include "megalith/grid/rank_generator.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/grid/checks.h"

namespace megalith::grid {
namespace {

bool contains(const std::vector<Axis>& axes, Axis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

/// "tp-CP" -> {tp, cp}. An unknown or empty word is an error with the given code; `what` says what the text is.
std::vector<Axis> parse_axes(std::string_view text, std::string_view code, std::string_view what) {
  std::vector<Axis> axes;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('-', begin), text.size());
    const std::string word(text.substr(begin, end - begin));
    std::string lower = word;
    for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const auto axis = std::find_if(kAxes.begin(), kAxes.end(), [&](Axis a) { return name_of(a) == lower; });
    if (axis == kAxes.end()) throw ConfigError(str(code, ": ", what, " '", text, "': unknown axis '", word, "'"));
    axes.push_back(*axis);
    begin = end + 1;
  }
  return axes;
}

}  // namespace

std::string_view name_of(Axis axis) {
  switch (axis) {
    case Axis::tp:
      return "tp";
    case Axis::cp:
      return "cp";
    case Axis::ep:
      return "ep";
    case Axis::dp:
      return "dp";
    case Axis::pp:
      return "pp";
  }
  throw InternalError(str("[grid] axis = ", static_cast<int>(axis), ": is not an Axis"));
}

int& PerAxis::operator[](Axis axis) {
  switch (axis) {
    case Axis::tp:
      return tp;
    case Axis::cp:
      return cp;
    case Axis::ep:
      return ep;
    case Axis::dp:
      return dp;
    case Axis::pp:
      return pp;
  }
  throw InternalError(str("[grid] axis = ", static_cast<int>(axis), ": is not an Axis"));
}

int PerAxis::operator[](Axis axis) const { return PerAxis(*this)[axis]; }

RankGenerator::RankGenerator(const PerAxis& sizes, std::string_view order)
    : sizes_(sizes), order_(parse_axes(order, "E_ORDER_UNKNOWN_AXIS", "order")) {
  for (const Axis axis : kAxes) require_size(name_of(axis), sizes[axis]);
  for (auto axis = order_.begin(); axis != order_.end(); ++axis) {
    if (std::find(order_.begin(), axis, *axis) == axis) continue;
    throw ConfigError(str("E_ORDER_DUPLICATE_AXIS: order '", order, "': axis '", name_of(*axis), "' appears twice"));
  }
  for (const Axis axis : kAxes) {
    if (contains(order_, axis)) continue;
    if (sizes[axis] > 1) {
      throw ConfigError(str("E_ORDER_MISSING_AXIS: order '", order, "': axis '", name_of(axis), "' has size ",
                            sizes[axis], " but is not in the order"));
    }
    order_.push_back(axis);
  }
  if (sizes.ep > 1 && sizes.cp > 1) {
    throw ConfigError(
        str("E_EP_AND_CP: one generator cannot have ep=", sizes.ep, " and cp=", sizes.cp, " both above 1"));
  }
  std::vector<int> in_order;
  for (const Axis axis : order_) in_order.push_back(sizes[axis]);
  const std::vector<int> products = prefix_products(in_order);
  for (std::size_t i = 0; i < order_.size(); ++i) strides_[order_[i]] = products[i];
  world_size_ = products.back();
}

std::string RankGenerator::order_text() const {
  std::string text;
  for (const Axis axis : order_) {
    if (!text.empty()) text += '-';
    text += name_of(axis);
  }
  return text;
}

int RankGenerator::rank(const PerAxis& coordinates) const {
  int rank = 0;
  for (const Axis axis : kAxes) {
    require_below(str(name_of(axis), " coordinate"), coordinates[axis], sizes_[axis]);
    rank += coordinates[axis] * strides_[axis];
  }
  return rank;
}

PerAxis RankGenerator::coordinates(int rank) const {
  require_below("rank", rank, world_size_);
  PerAxis coordinates;
  for (const Axis axis : kAxes) coordinates[axis] = rank / strides_[axis] % sizes_[axis];
  return coordinates;
}

int RankGenerator::in_first_copy(int rank) const {
  PerAxis place = coordinates(rank);
  place.cp = place.dp = 0;
  return this->rank(place);
}

MaskedGroups RankGenerator::groups(std::string_view token) const {
  const std::vector<Axis> wanted = parse_axes(token, "E_TOKEN_UNKNOWN", "token");
  std::vector<MaskedAxis> axes;
  for (const Axis axis : order_) axes.push_back({.size = sizes_[axis], .masked = contains(wanted, axis)});
  return MaskedGroups(axes);
}

}  // namespace megalith::grid
