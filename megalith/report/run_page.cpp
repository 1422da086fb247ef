#include "megalith/report/run_page.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "megalith/base/str.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/reader.h"
#include "megalith/report/page_text.h"
#include "megalith/train/run_history.h"

namespace megalith::apps {
namespace {

constexpr std::size_t kMaxEvals = 400;

/// The same JSON without `<`, which is in texts only: so no text ends the element of the page that holds it.
std::string without_tags(const std::string& json) {
  std::string safe;
  for (const char c : json) {
    if (c == '<')
      safe += "\\u003c";
    else
      safe += c;
  }
  return safe;
}

/// "KEY":{...} for each, joined.
template <class Map, class Text>
std::string members(const Map& map, const Text& text) {
  std::string all;
  for (const auto& [key, value] : map) all += str(all.empty() ? "" : ",", train::json_text(key), ':', text(value));
  return str('{', all, '}');
}

template <class List, class Text>
std::string elements(const List& list, const Text& text) {
  std::string all;
  for (const auto& value : list) all += str(all.empty() ? "" : ",", text(value));
  return str('[', all, ']');
}

std::string or_null(const std::string& json) { return json.empty() ? "null" : json; }

using EvalLines = std::map<Index, std::vector<std::string>>;

std::size_t count_of(const EvalLines& evals) {
  std::size_t count = 0;
  for (const auto& [step, lines] : evals) count += lines.size();
  return count;
}

/// About kMaxEvals lines of evaluations: all of the first step, of the last, and of evenly chosen ones between. So each
/// set and each task keeps its share.
std::vector<std::string> some_of(const EvalLines& evals) {
  const std::size_t count = count_of(evals), steps = evals.size();
  const std::size_t kept =
      count <= kMaxEvals ? steps : std::min(steps, std::max<std::size_t>(2, kMaxEvals * steps / count));
  std::vector<std::string> some;
  std::size_t number = 0, next = 0;
  for (const auto& [step, lines] : evals) {
    if (number++ * (kept - 1) < next * (steps - 1)) continue;
    some.insert(some.end(), lines.begin(), lines.end());
    ++next;
  }
  return some;
}

std::string mark_json(const RunMark& mark) {
  std::string json = str("{\"kind\":", train::json_text(mark.kind), ",\"step\":", mark.step);
  if (!mark.time.empty()) json += ",\"time\":" + train::json_text(mark.time);
  if (!mark.text.empty()) json += ",\"text\":" + train::json_text(mark.text);
  return json + "}";
}

std::string loads_json(const std::map<Index, LayerLoadSeries>& layers) {
  return elements(layers, [](const auto& layer) {
    return str("{\"layer\":", layer.first, ",\"hottest\":", or_null(layer.second.hottest),
               ",\"series\":", members(layer.second.series, [](const ThinnedSeries& series) { return series.json(); }),
               '}');
  });
}

void replace(std::string& text, std::string_view word, std::string_view by) {
  const std::size_t at = text.find(word);
  if (at != std::string::npos) text.replace(at, word.size(), by);
}

}  // namespace

RunPage::RunPage(std::shared_ptr<io::Fs> fs, const std::vector<std::string>& outs) : fs_(std::move(fs)) {
  io::FileProblems problems;
  for (const std::string& out : outs) {
    try {
      runs_.push_back({.name = out, .reader = RunReader(*fs_, out), .facts = {}});
    } catch (const InputError& error) {
      problems.add(error.what());
    }
  }
  problems.throw_if_any("report");
  update();
}

bool RunPage::read_recipe(Run& run) {
  const io::Path file = run.reader.out() / "recipe.toml";
  const std::string text = fs_->exists(file) ? std::string(fs_->map(file).text()) : "";
  if (text == run.recipe && !text.empty()) return false;
  const bool is_new = text != run.recipe || run.facts.problem.empty();
  run.recipe = text;
  run.facts = run_facts(*fs_, run.reader.out());
  return is_new;
}

bool RunPage::update() {
  bool is_any_new = false;
  for (Run& run : runs_) {
    const bool has_recipe = read_recipe(run);  // a run that resumes may have another one
    if (!run.reader.update() && !has_recipe) continue;
    is_any_new = true;
    run.call_logs.clear();
    for (const std::string& name : fs_->list(run.reader.out())) {
      if (name.starts_with("calls_rank_")) run.call_logs.push_back(name);
    }
  }
  return is_any_new;
}

std::string RunPage::run_json(const Run& run) const {
  const RunMetrics& metrics = run.reader.metrics();
  const auto text = [](const std::string& json) { return json; };
  return str("{\"name\":", train::json_text(run.name), ",\"title\":", train::json_text(run.facts.title),
             ",\"planned_steps\":", run.facts.planned_steps, ",\"steps\":", metrics.steps,
             ",\"last_step\":", metrics.last_step,
             ",\"series\":", members(metrics.series, [](const ThinnedSeries& series) { return series.json(); }),
             ",\"evals\":", elements(some_of(metrics.evals), text), ",\"eval_count\":", count_of(metrics.evals),
             ",\"marks\":", elements(metrics.marks, mark_json),
             ",\"mark_counts\":", members(metrics.counts, [](Index count) { return count; }),
             ",\"loads\":", loads_json(metrics.layers), ",\"graphs\":", or_null(metrics.graphs),
             ",\"left_out\":", elements(run.reader.left_out(), train::json_text),
             ",\"call_logs\":", elements(run.call_logs, train::json_text),
             ",\"recipe_problem\":", train::json_text(run.facts.problem),
             ",\"recipe\":", members(run.facts.recipe, train::json_text), ",\"memory\":", or_null(run.facts.memory),
             ",\"grid\":", or_null(run.facts.grid), ",\"schedule\":", or_null(run.facts.schedule), '}');
}

/// Keys whose values differ between runs, or that some runs do not have.
std::string RunPage::differing_keys() const {
  std::map<std::string, std::set<std::string>> values;
  std::map<std::string, std::size_t> holders;
  std::vector<std::string> order;
  for (const Run& run : runs_) {
    for (const auto& [key, value] : run.facts.recipe) {
      if (!values.contains(key)) order.push_back(key);
      values[key].insert(value);
      ++holders[key];
    }
  }
  std::erase_if(order, [&](const std::string& key) { return values[key].size() == 1 && holders[key] == runs_.size(); });
  return elements(order, train::json_text);
}

std::string RunPage::json() const {
  return without_tags(str("{\"runs\":", elements(runs_, [this](const Run& run) { return run_json(run); }),
                          ",\"differs\":", differing_keys(), '}'));
}

std::string RunPage::html(Kind kind) const {
  std::string page(page_text::kHtml);
  replace(page, "CHART_STYLE", page_text::kChartStyle);
  replace(page, "PAGE_STYLE", page_text::kPageStyle);
  replace(page, "LIVE", kind == Kind::served ? "true" : "false");
  replace(page, "PAGE_SCRIPT", str(page_text::kCharts, page_text::kPictures, page_text::kPage));
  replace(page, "RUN_DATA", json());  // last: it holds texts of others
  return page;
}

}  // namespace megalith::apps
