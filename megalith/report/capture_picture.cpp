#include "megalith/report/capture_picture.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

using pipeline::Act;
using pipeline::LoweredAction;
using pipeline::LoweredSchedule;

constexpr int kCell = 36, kRow = 26, kMargin = 12, kTop = 58;  // pixels

/// A slot's row, from the top.
int row_of(const LoweredSchedule& lowered, const LoweredAction& action) {
  if (lowered.slot_policy == pipeline::SlotPolicy::shared) return action.slot;
  int row = action.slot;
  for (int chunk = 0; chunk < action.chunk; ++chunk) row += lowered.num_slots[static_cast<std::size_t>(chunk)];
  return row;
}

std::vector<std::string> row_names(const LoweredSchedule& lowered) {
  std::vector<std::string> names;
  for (std::size_t pool = 0; pool < lowered.num_slots.size(); ++pool) {
    for (int slot = 0; slot < lowered.num_slots[pool]; ++slot) {
      const bool several = lowered.num_slots.size() > 1;
      names.push_back(several ? str("chunk ", pool, " slot ", slot) : str("slot ", slot));
    }
  }
  return names;
}

/// The passes that are recorded, in their order.
std::vector<LoweredAction> captured_passes(const pipeline::ScheduleShape& shape, const LoweredSchedule& lowered) {
  std::vector<LoweredAction> passes;
  for (const LoweredAction& action : lowered.actions) {
    const bool is_pass = action.act == Act::forward || action.act == Act::backward;
    if (is_pass && action.microbatch < captured_microbatches(shape)) passes.push_back(action);
  }
  return passes;
}

std::string rect(const char* style, int x, int y, int width, int height) {
  return str("  <rect class=\"", style, "\" x=\"", x, "\" y=\"", y, "\" width=\"", width, "\" height=\"", height,
             "\" rx=\"3\"/>\n");
}

std::string words(const char* style, int x, int y, const std::string& text) {
  return str("  <text class=\"", style, "\" x=\"", x, "\" y=\"", y, "\">", text, "</text>\n");
}

std::string title(const pipeline::ScheduleShape& shape, int stage, std::size_t passes) {
  std::string text = str("Stage ", stage, " of ", shape.num_stages, ": the order in which graphs are recorded and run");
  if (passes > kMaxPictureColumns) text += str(", the first ", kMaxPictureColumns, " of ", passes, " passes");
  return text;
}

}  // namespace

std::string capture_picture(const pipeline::ScheduleShape& shape, int stage, const LoweredSchedule& lowered) {
  const std::vector<LoweredAction> passes = captured_passes(shape, lowered);
  const std::vector<std::string> rows = row_names(lowered);
  const int columns = std::min(static_cast<int>(passes.size()), kMaxPictureColumns);
  const int label_width = 7 * static_cast<int>(rows.front().size()) + kMargin;
  const int left = kMargin + label_width;
  const int width = std::max(left + columns * kCell + kMargin, 640);
  const int height = kTop + static_cast<int>(rows.size()) * kRow + kMargin;
  std::string held, boxes;
  std::map<std::pair<int, int>, int> forward_column;  // of (chunk, microbatch)
  for (int column = 0; column < columns; ++column) {
    const LoweredAction& pass = passes[static_cast<std::size_t>(column)];
    const int x = left + column * kCell, y = kTop + row_of(lowered, pass) * kRow;
    const bool is_forward = pass.act == Act::forward;
    boxes += rect(is_forward ? "forward" : "backward", x + 1, y + 2, kCell - 2, kRow - 4);
    boxes += words("pass", x + kCell / 2, y + 17,
                   str(is_forward ? "F" : "B", pass.microbatch, shape.num_chunks > 1 ? str(".", pass.chunk) : ""));
    const std::pair key{pass.chunk, pass.microbatch};
    if (is_forward) {
      forward_column[key] = column;
    } else {
      const int from = left + (forward_column.at(key) + 1) * kCell;
      if (x > from) held += rect("held", from, y + 8, x - from, kRow - 16);
    }
  }
  std::string labels;
  for (std::size_t row = 0; row < rows.size(); ++row)
    labels += words("row", kMargin, kTop + static_cast<int>(row) * kRow + 17, rows[row]);
  return str("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
             "\" height=\"", height,
             "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
             "  <style>\n"
             "    text { fill: #1d2b3a } .pass { text-anchor: middle } .row { fill: #5a6b7b } .title { font-size: 14px "
             "}\n"
             "    .forward { fill: #cfe3f7; stroke: #46607a } .backward { fill: #f7dcc4; stroke: #8a5a2b }\n"
             "    .held { fill: #e3e8ed }\n"
             "  </style>\n"
             "  <rect width=\"",
             width, "\" height=\"", height, "\" fill=\"#ffffff\"/>\n") +
         words("title", kMargin, 22, title(shape, stage, passes.size())) +
         words("row", kMargin, 42,
               shape.num_chunks > 1 ? "F forward, B backward, microbatch.chunk; grey: the slot is held"
                                    : "F forward, B backward of a microbatch; grey: the slot is held") +
         labels + held + boxes + "</svg>\n";
}

}  // namespace megalith::apps
