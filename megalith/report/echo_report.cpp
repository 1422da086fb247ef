#include "megalith/report/echo_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <sstream>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/report/echo_picture.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

// ---- JSON -----------------------------------------------------------------------------------------------------------

/// The rows of a matrix [rows, columns].
ordered_json echo_matrix(const Counts& values, Index rows, Index columns) {
  ordered_json all = ordered_json::array();
  for (Index r = 0; r < rows; ++r)
    all.push_back(Counts(values.begin() + r * columns, values.begin() + (r + 1) * columns));
  return all;
}

std::string echo_json(const EchoResult& plan) {
  const Index ranks = plan.of.ranks, slots = plan.all_slots();
  Counts depth = plan.take;
  for (std::size_t i = 0; i < depth.size(); ++i) depth[i] -= plan.breadth[i];
  const ordered_json input{{"ranks", ranks},
                           {"experts", plan.of.experts},
                           {"slots_per_rank", plan.settings.slots},
                           {"min_pairs", plan.settings.min_pairs},
                           {"balance", name_of(plan.settings.balance)},
                           {"count", echo_matrix(plan.of.counts, ranks, plan.of.experts)}};
  const ordered_json expect{{"expert_total", plan.total},
                            {"load", plan.load},
                            {"total", plan.pairs()},
                            {"avg", plan.avg},
                            {"spare", plan.spare},
                            {"spill", plan.spill},
                            {"spill_index", plan.spill_index},
                            {"spare_index", plan.spare_index},
                            {"slot_src", plan.src},
                            {"slot_cap", plan.cap},
                            {"plan_dropped", plan.dropped},
                            {"breadth", echo_matrix(plan.breadth, ranks, slots)},
                            {"capacity_remaining", plan.room},
                            {"depth", echo_matrix(depth, ranks, slots)},
                            {"offload", echo_matrix(plan.take, ranks, slots)},
                            {"load_after", plan.load_after},
                            {"rows", echo_matrix(plan.rows, ranks, plan.of.experts + slots)},
                            {"plan_hash", hex64(plan.hash)}};
  const ordered_json entry{
      {"id", "megalith-echo"}, {"source", "derived"}, {"op", "plan"}, {"input", input}, {"expect", expect}};
  return entry.dump() + "\n";
}

// ---- text -----------------------------------------------------------------------------------------------------------

using Rows = std::vector<std::vector<std::string>>;

/// A table with a text after each row.
std::string table_with_texts(const Rows& rows, const std::vector<std::string>& texts) {
  std::istringstream lines(text_table(rows));
  std::string text, line;
  for (const std::string& more : texts) {
    std::getline(lines, line);
    text += more.empty() ? line + '\n' : str(line, "  ", more, '\n');
  }
  return text;
}

std::string spill_text(const EchoResult& plan) {
  Rows rows = {{"rank", "load", "spare", "spill"}};
  std::vector<std::string> texts = {"experts that spill"};
  for (Index rank = 0; rank < plan.of.ranks; ++rank) {
    Index sum = 0;
    std::string experts;
    for (const std::int32_t expert : plan.spill_index) {  // the largest first
      if (expert / plan.of.local() != rank || plan.spill[at(expert)] == 0) continue;
      sum += plan.spill[at(expert)];
      experts += str(experts.empty() ? "" : ", ", expert, ": ", plan.spill[at(expert)], " of ", plan.total[at(expert)]);
    }
    rows.push_back({str(rank), str(plan.load[at(rank)]), str(plan.spare[at(rank)]), str(sum)});
    texts.push_back(experts);
  }
  const bool is_exact = plan.settings.balance == ops::EchoBalance::exact;
  return str("spill: ",
             is_exact ? "what a rank takes from the largest experts of another one; spare: what it lacks when it takes"
                      : "what a rank has above the mean leaves its largest experts; spare: what it has below the mean",
             '\n', table_with_texts(rows, texts));
}

std::string assign_text(const EchoResult& plan) {
  Rows rows = {{"expert", "from rank", "to rank", "pairs"}};
  for (std::size_t i = 0; i < plan.moves.size() && plan.moves[i] >= 0; i += 3)
    rows.push_back(
        {str(plan.moves[i]), str(plan.moves[i] / plan.of.local()), str(plan.moves[i + 1]), str(plan.moves[i + 2])});
  const bool is_exact = plan.settings.balance == ops::EchoBalance::exact;
  return str("assign: ",
             is_exact ? "the rank that lacks most takes it from the most loaded one"
                      : "the largest spill to the largest spare, as overlaps of intervals",
             '\n', rows.size() == 1 ? "nothing is to move\n" : text_table(rows));
}

std::string slots_text(const EchoResult& plan) {
  Rows rows = {{"slot", "rank", "expert", "from rank", "pairs"}};
  for (Index slot = 0; slot < plan.all_slots(); ++slot) {
    if (plan.src[at(slot)] < 0) continue;
    rows.push_back({str(slot), str(slot / plan.settings.slots), str(plan.src[at(slot)]), str(plan.home(slot)),
                    str(plan.cap[at(slot)])});
  }
  const std::int32_t wanted = *std::ranges::max_element(plan.wanted);
  const bool is_short = wanted > plan.settings.slots;
  std::string text = str("slots: the largest of what arrives at a rank gets a clone; ", plan.all_slots(), " slots, ",
                         plan.clones(), " in use\n", rows.size() == 1 ? "" : text_table(rows));
  text += str("stay home: ", plan.dropped, " pairs");
  if (plan.dropped > 0) {
    text += is_short ? str(", for want of slots (", wanted,
                           plan.settings.balance == ops::EchoBalance::exact ? " or more" : "", " a rank would do)")
                     : "";
    text += plan.settings.min_pairs > 0
                ? str(is_short ? ", or" : ",", " in parts below min_pairs = ", plan.settings.min_pairs,
                      " (--min-pairs 0 moves them)")
                : "";
  }
  return text + '\n';
}

std::string shares_text(const EchoResult& plan) {
  constexpr Index kMostColumns = 16;
  const Index ranks = plan.of.ranks, all = plan.all_slots();
  const bool has_columns = ranks <= kMostColumns;
  Rows rows = {{"slot", "expert", "pairs"}};
  for (Index rank = 0; has_columns && rank < ranks; ++rank) rows[0].push_back(str("rank ", rank));
  if (!has_columns) rows[0].insert(rows[0].end(), {"in proportion", "rest"});
  for (Index slot = 0; slot < all; ++slot) {
    if (plan.src[at(slot)] < 0) continue;
    std::vector<std::string> row = {str(slot), str(plan.src[at(slot)]), str(plan.cap[at(slot)])};
    for (Index rank = 0; has_columns && rank < ranks; ++rank) {
      const std::int32_t first = plan.breadth[at(rank * all + slot)], more = plan.take[at(rank * all + slot)] - first;
      row.push_back(more == 0 ? str(first) : str(first, '+', more));
    }
    const std::int32_t rest = plan.room[at(slot)];
    if (!has_columns) row.insert(row.end(), {str(plan.cap[at(slot)] - rest), str(rest)});
    rows.push_back(std::move(row));
  }
  return str("shares: pairs of a slot by source rank, in proportion (floor) + what floors left, in rank order\n",
             rows.size() == 1 ? "no slot is in use\n" : text_table(rows));
}

std::string plan_stage_text(const EchoResult& plan, const EchoCosts& costs) {
  Rows rows = {{"rank", "load", "after", "of them in slots"}};
  for (Index rank = 0; rank < plan.of.ranks; ++rank) {
    const auto slots = plan.cap.begin() + rank * plan.settings.slots;
    rows.push_back({str(rank), str(plan.load[at(rank)]), str(plan.load_after[at(rank)]),
                    str(std::accumulate(slots, slots + plan.settings.slots, Index{0}))});
  }
  std::string text =
      str("plan: pairs that ranks compute\n", text_table(rows), "max/mean ", echo_ratio(plan.max_over_mean(plan.load)),
          " before, ", echo_ratio(plan.max_over_mean(plan.load_after)), " after; ", plan.clones(),
          plan.clones() == 1 ? " clone, " : " clones, ", plan.moved(), " of ", plan.pairs(), " pairs moved\n");
  if (costs.has_bytes())
    text += str("weights sent: ", human_bytes(std::llround(costs.weights_bytes() * static_cast<double>(plan.clones()))),
                "; gradients: ", human_bytes(std::llround(costs.gradient_bytes() * static_cast<double>(plan.clones()))),
                '\n');
  if (costs.has_rates()) {
    const auto pays = std::ranges::count_if(plan.cap, [&](std::int32_t pairs) { return pairs > costs.keep(); });
    text +=
        str(break_even_text(costs), pays, " of the ", plan.clones(), " clones ", pays == 1 ? "has" : "have", " more\n");
  }
  return str(text, "hash ", hex64(plan.hash), '\n');
}

std::string echo_text(const EchoResult& plan, EchoStage stage, const EchoCosts& costs) {
  const EchoSettings& settings = plan.settings;
  std::string text = str(plan.of.ranks, " ranks, ", plan.of.experts, " experts, ", settings.slots,
                         " slots a rank; balance ", name_of(settings.balance));
  if (settings.balance == ops::EchoBalance::greedy) text += str(", min_pairs ", settings.min_pairs);
  text += str("\n", plan.pairs(), " pairs, a mean of ", plan.avg, " a rank\n");
  const auto add = [&](EchoStage one, const std::string& more) {
    if (stage == EchoStage::all || stage == one) text += '\n' + more;
  };
  add(EchoStage::spill, spill_text(plan));
  add(EchoStage::assign, assign_text(plan));
  add(EchoStage::slots, slots_text(plan));
  add(EchoStage::shares, shares_text(plan));
  add(EchoStage::plan, plan_stage_text(plan, costs));
  return text;
}

}  // namespace

std::string echo_ratio(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

std::string break_even_text(const EchoCosts& costs) {
  if (!costs.has_rates()) return "";
  return str("A clone pays above ", std::llround(costs.keep()),
             " pairs, where nothing hides its transfer (weights sent again for backward: ",
             std::llround(costs.redispatch()), "; forward only: ", std::llround(costs.forward()), ").\n");
}

std::string echo_report(const EchoResult& plan, EchoFormat format, EchoStage stage, const EchoCosts& costs) {
  switch (format) {
    case EchoFormat::json:
      return echo_json(plan);
    case EchoFormat::svg:
      return echo_picture(plan);
    case EchoFormat::text:
      break;
  }
  return echo_text(plan, stage, costs);
}

}  // namespace megalith::apps
