#include "megalith/report/echo_picture.h"

#include <algorithm>

#include "megalith/base/str.h"
#include "megalith/report/echo_report.h"

namespace megalith::apps {
namespace {

constexpr int kPanel = 140, kBefore = 84, kAfter = kBefore + kPanel + 110, kMarginLeft = 70, kWidth = 640;  // pixels

class EchoDrawing {
 public:
  explicit EchoDrawing(const EchoResult& plan)
      : plan_(plan), most_(std::max<Index>(1, *std::ranges::max_element(plan.load))) {
    pitch_ = std::max<Index>(10, (kWidth - kMarginLeft - 20) / plan.of.ranks);
    most_ = std::max<Index>(most_, *std::ranges::max_element(plan.load_after));
  }

  std::string draw() const {
    const Index width = std::max<Index>(kWidth, kMarginLeft + pitch_ * plan_.of.ranks + 20);
    const int height = kAfter + kPanel + 34;
    std::string text = str(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
        "\" height=\"", height,
        "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
        "  <style>\n"
        "    text { fill: #1d2b3a } .middle { text-anchor: middle } .row { fill: #5a6b7b } .title { font-size: 14px }\n"
        "    .stays { fill: #cfe3f7; stroke: #46607a } .moves { fill: #f7dcc4; stroke: #8a5a2b }\n"
        "    .clone { stroke: #8a5a2b; stroke-width: 1.5; fill: none } .mean { stroke: #5a6b7b; stroke-dasharray: 5 4 "
        "}\n"
        "  </style>\n"
        "  <defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" "
        "orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\" fill=\"#8a5a2b\"/></marker></defs>\n"
        "  <rect width=\"",
        width, "\" height=\"", height, "\" fill=\"#ffffff\"/>\n");
    text += words(
        "title", 12, 24,
        str(plan_.pairs(), " pairs on ", plan_.of.ranks, " ranks: max/mean ",
            echo_ratio(plan_.max_over_mean(plan_.load)), " before, ", echo_ratio(plan_.max_over_mean(plan_.load_after)),
            " after ", plan_.clones(), plan_.clones() == 1 ? " clone" : " clones"));
    text += words("row", 12, 44,
                  "pairs that a rank computes; orange: they move with a clone of their expert; dashed: mean");
    return text + panel("before", kBefore) + panel("after", kAfter) + before() + after() + arrows() + "</svg>\n";
  }

 private:
  static std::string words(const char* style, Index x, Index y, const std::string& text) {
    return str("  <text class=\"", style, "\" x=\"", x, "\" y=\"", y, "\">", text, "</text>\n");
  }
  std::string line(const char* style, Index x1, Index y1, Index x2, Index y2, const char* more = "") const {
    return str("  <line class=\"", style, "\" x1=\"", x1, "\" y1=\"", y1, "\" x2=\"", x2, "\" y2=\"", y2, "\"", more,
               "/>\n");
  }
  Index center(Index rank) const { return kMarginLeft + rank * pitch_ + pitch_ / 2; }
  Index pixels(Index pairs) const { return pairs * kPanel / most_; }
  bool has_labels() const { return pitch_ >= 60; }

  /// A part of a bar, from the pairs `below` it on.
  std::string part(const char* style, Index rank, int top, Index below, Index pairs, const std::string& label) const {
    if (pairs == 0) return "";
    const Index height = pixels(below + pairs) - pixels(below), width = pitch_ * 7 / 10;
    const Index y = top + kPanel - pixels(below + pairs), x = center(rank) - width / 2;
    const std::string box = str("  <rect class=\"", style, "\" x=\"", x, "\" y=\"", y, "\" width=\"", width,
                                "\" height=\"", height, "\"/>\n");
    const bool fits = has_labels() && height >= 14 && !label.empty();
    return fits ? box + words("middle", center(rank), y + height / 2 + 4, label) : box;
  }
  std::string panel(const char* name, int top) const {
    const Index right = kMarginLeft + pitch_ * plan_.of.ranks, mean = top + kPanel - pixels(plan_.avg);
    std::string text = words("row", 12, top + kPanel - 4, name) + line("mean", kMarginLeft, mean, right, mean);
    for (Index rank = 0; rank < plan_.of.ranks && pitch_ >= 24; ++rank)
      text += words("middle row", center(rank), top + kPanel + 15, has_labels() ? str("rank ", rank) : str(rank));
    return text;
  }
  std::string before() const {
    std::string text;
    for (Index rank = 0; rank < plan_.of.ranks; ++rank) {
      Index leaves = 0;
      for (Index slot = 0; slot < plan_.all_slots(); ++slot) {
        const auto k = static_cast<std::size_t>(slot);
        if (plan_.src[k] >= 0 && plan_.home(slot) == rank) leaves += plan_.cap[k];
      }
      const Index load = plan_.load[static_cast<std::size_t>(rank)];
      text += part("stays", rank, kBefore, 0, load - leaves, str(load - leaves));
      text += part("moves", rank, kBefore, load - leaves, leaves, str(leaves));
    }
    return text;
  }
  std::string after() const {
    std::string text;
    for (Index rank = 0; rank < plan_.of.ranks; ++rank) {
      Index own = plan_.load_after[static_cast<std::size_t>(rank)];
      for (Index j = 0; j < plan_.settings.slots; ++j)
        own -= plan_.cap[static_cast<std::size_t>(rank * plan_.settings.slots + j)];
      text += part("stays", rank, kAfter, 0, own, str(own));
      for (Index j = 0; j < plan_.settings.slots; ++j) {
        const auto k = static_cast<std::size_t>(rank * plan_.settings.slots + j);
        text += part("moves", rank, kAfter, own, plan_.cap[k], str("e", plan_.src[k], ": ", plan_.cap[k]));
        own += plan_.cap[k];
      }
    }
    return text;
  }
  std::string arrows() const {
    std::string text;
    for (Index slot = 0; slot < plan_.all_slots(); ++slot) {
      if (plan_.src[static_cast<std::size_t>(slot)] < 0) continue;
      const Index rank = slot / plan_.settings.slots, j = slot % plan_.settings.slots;
      const Index shift = std::min<Index>(j * 8, pitch_ / 3);
      const Index top = kAfter + kPanel - pixels(plan_.load_after[static_cast<std::size_t>(rank)]) - 2;
      text += line("clone", center(plan_.home(slot)), kBefore + kPanel + 20, center(rank) + shift, top,
                   " marker-end=\"url(#head)\"");
    }
    return text;
  }

  const EchoResult& plan_;
  Index most_, pitch_ = 0;
};

}  // namespace

std::string echo_picture(const EchoResult& plan) { return EchoDrawing(plan).draw(); }

}  // namespace megalith::apps
