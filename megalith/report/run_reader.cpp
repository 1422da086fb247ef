#include "megalith/report/run_reader.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/problem_text.h"

namespace megalith::apps {
namespace {

using nlohmann::json;

constexpr Index kSeriesBuckets = 400, kLoadBuckets = 100;  // by which a page keeps to its size (docs/report.md)
constexpr std::size_t kMaxMarks = 200, kMaxDamage = 20, kTailBytes = 256, kMaxMarkText = 2000;
constexpr std::string_view kSpikeEnd = "_spike";  // loss_spike: how many times its mean a loss is
constexpr Index kMaxStep = Index{1} << 53;

/// The member of an object that is a step; -1 where there is none that can be one.
Index step_in(const json& line) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return -1;
  if (step->is_number_unsigned() && step->get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxStep)) return -1;
  return step->get<Index>() > kMaxStep ? -1 : step->get<Index>();
}

std::string text_in(const json& line, const char* key) {
  const auto found = line.find(key);
  if (found == line.end()) return "";
  std::string text = found->is_string() ? found->get<std::string>() : found->dump();
  if (text.size() <= kMaxMarkText) return text;
  std::size_t end = kMaxMarkText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // no half of a UTF-8 character
  return text.substr(0, end) + "...";
}

}  // namespace

RunReader::RunReader(io::Fs& fs, io::Path out) : fs_(fs), out_(std::move(out)) {
  const io::Path metrics = out_ / sources_[0].name;
  if (!fs_.exists(out_))
    throw InputError(str("[", out_.string(), "] no such folder", io::looked_for_in(out_),
                         "; name the OUT of a run, to which `megalith train RECIPE --out OUT` writes"));
  if (!fs_.is_dir(out_)) throw InputError(str("[", out_.string(), "] is a file: name the folder OUT of a run"));
  if (!fs_.exists(metrics))
    throw InputError(str("[", metrics.string(), "] no such file: no run has begun in this folder; `megalith train ",
                         "RECIPE --out ", out_.string(), "` writes it, with a line for each step"));
}

void RunReader::damage(const Source& source, std::string_view what) {
  ++metrics_.damaged;
  if (metrics_.damage.size() < kMaxDamage)
    metrics_.damage.push_back(str(source.name, " line ", source.lines, ": ", what, "; the line is left out"));
}

void RunReader::mark(RunMark mark) {
  ++metrics_.counts[mark.kind];
  const auto is_same = [&](const RunMark& other) {  // ranks that fail alike write a line each
    return other.kind == mark.kind && other.step == mark.step && other.text == mark.text && mark.kind == "fault";
  };
  if (std::ranges::any_of(metrics_.marks, is_same)) {
    --metrics_.counts[mark.kind];
    return;
  }
  if (metrics_.counts[mark.kind] <= static_cast<Index>(kMaxMarks)) metrics_.marks.push_back(std::move(mark));
}

void RunReader::add_number(const std::string& key, const json& value, Index step) {
  if (!value.is_number()) return;
  const auto number = value.get<double>();
  if (!std::isfinite(number)) return;
  metrics_.series.try_emplace(key, kSeriesBuckets).first->second.add(step, number);
}

void RunReader::add_layers(const json& layers, Index step) {
  for (const json& layer : layers) {
    const auto number = layer.is_object() ? layer.find("layer") : layer.end();
    if (!layer.is_object() || number == layer.end() || !number->is_number_integer()) continue;
    LayerLoadSeries& loads = metrics_.layers[number->get<Index>()];
    const auto add = [&](const std::string& key, const json& value) {
      if (value.is_number() && key != "layer")
        loads.series.try_emplace(key, kLoadBuckets).first->second.add(step, value.get<double>());
    };
    for (const auto& [key, value] : layer.items()) {
      if (key == "hottest") loads.hottest = value.dump();
      add(key, value);
      if (!value.is_object()) continue;
      for (const auto& [inner, inner_value] : value.items()) add(str(key, '.', inner), inner_value);
    }
  }
}

void RunReader::read_step(const json& line, Index step) {
  ++metrics_.steps;
  metrics_.last_step = std::max(metrics_.last_step, step);
  for (const auto& [key, value] : line.items()) {
    if (key == "step" || key == "skipped" || key == "rerun" || key.ends_with(kSpikeEnd)) continue;
    if (value.is_null()) mark({.kind = "not finite", .step = step, .text = key});
    add_number(key, value, step);
    if (!value.is_object()) continue;
    for (const auto& [inner, inner_value] : value.items()) {
      if (inner == "layers" && inner_value.is_array()) add_layers(inner_value, step);
      add_number(str(key, '.', inner), inner_value, step);
    }
  }
  const auto is_set = [&](const char* key) {
    const auto found = line.find(key);
    return found != line.end() && found->is_number() && found->get<double>() != 0;
  };
  for (const char* number : {"loss", "grad_norm"}) {
    const std::string key = str(number, kSpikeEnd);
    if (is_set(key.c_str()))
      mark({.kind = "spike", .step = step, .text = str(number, ": ", text_in(line, key.c_str()), " times its mean")});
  }
  if (is_set("skipped")) mark({.kind = "skipped", .step = step});
  if (is_set("rerun")) mark({.kind = "rerun", .step = step});
}

void RunReader::read_line(const Source& source, std::string_view line) {
  json value;
  try {
    value = io::read_json(line, {.name = source.name, .first_line = static_cast<std::size_t>(source.lines)});
  } catch (const io::JsonError&) {
    return damage(source, "is not JSON");
  }
  if (!value.is_object()) return damage(source, "is no JSON object");
  const Index step = step_in(value);
  if (value.contains("event")) {
    return mark({.kind = text_in(value, "event"),
                 .step = std::max<Index>(0, step),
                 .time = text_in(value, "time"),
                 .text = text_in(value, "text")});
  }
  if (step < 0) return damage(source, "has no step");
  if (value.contains("eval"))
    metrics_.evals[step].push_back(value.dump());
  else if (value.contains("graphs"))
    metrics_.graphs = value.dump();
  else if (step == 0)
    damage(source, "has no step from 1");
  else
    read_step(value, step);
}

bool RunReader::is_unchanged_so_far(const Source& source, std::string_view text) {
  return text.size() >= source.read && text.substr(0, source.read).ends_with(source.tail);
}

bool RunReader::read(Source& source, std::string_view text) {
  const std::size_t end_of_lines = text.rfind('\n') + 1;  // 0 without one
  const std::size_t torn = text.size() - end_of_lines;
  bool is_new = torn != source.torn;
  source.torn = torn;
  while (source.read < end_of_lines) {
    const std::size_t end = text.find('\n', source.read);
    const std::string_view line = text.substr(source.read, end - source.read);
    source.read = end + 1;
    ++source.lines;
    if (!line.empty()) read_line(source, line);
    is_new = true;
  }
  const std::size_t tail = std::min(kTailBytes, source.read);
  source.tail = text.substr(source.read - tail, tail);
  return is_new;
}

std::vector<std::string> RunReader::left_out() const {
  std::vector<std::string> all = metrics_.damage;
  if (const Index more = metrics_.damaged - std::ssize(metrics_.damage); more > 0)
    all.push_back(str("and ", more, more == 1 ? " more line" : " more lines"));
  for (const Source& source : sources_) {
    if (source.torn > 0)
      all.push_back(str(source.name, " line ", source.lines + 1, ": has no end after ", source.torn,
                        " bytes: the run is writing it, or was killed; the line is left out"));
  }
  return all;
}

bool RunReader::update() {
  std::array<io::MappedFile, 2> files;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (fs_.exists(out_ / sources_[i].name)) files[i] = fs_.map(out_ / sources_[i].name);
  }
  bool is_new = false;
  const auto is_kept = [&](std::size_t i) { return is_unchanged_so_far(sources_[i], files[i].text()); };
  if (!is_kept(0) || !is_kept(1)) {
    for (Source& source : sources_) source = Source{source.name};
    metrics_ = {};
    is_new = true;
  }
  for (std::size_t i = 0; i < files.size(); ++i) is_new = read(sources_[i], files[i].text()) || is_new;
  return is_new;
}

}  // namespace megalith::apps
