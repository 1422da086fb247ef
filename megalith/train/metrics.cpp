#include "megalith/train/metrics.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/train/run_history.h"

namespace megalith::train {
namespace {

constexpr std::string_view kEvaluation = "{\"eval\":", kStep = "{\"step\":";

/// JSON has no NaN or infinity.
std::string number(double value) { return std::isfinite(value) ? exact(value) : "null"; }

/// The members of the means of all losses.
std::string parts_of(const LossMeans& losses) {
  std::string parts;
  if (!losses.are_parts()) return parts;
  for (const LossMean& loss : losses) {
    parts += str(",\"", loss.name, "\":", number(loss.mean));
    if (!loss.terms.empty()) parts += str(",\"", loss.terms, "\":", loss.count);
  }
  return parts;
}

/// The member perplexity, of the mean over tokens.
std::string perplexity_of(const LossMeans& losses) { return str(",\"perplexity\":", number(std::exp(losses[0].mean))); }

/// Whether the first loss is the mean over masked tokens, so that a step's line has its perplexity, too.
bool is_masked_lm(const LossMeans& losses) { return losses.size() > 0 && losses[0].terms == "masked_tokens"; }

/// The step that a line of metrics.jsonl belongs to, -1 where there is none.
Index step_of(std::string_view line) {
  constexpr std::string_view kKey = "\"step\":";
  const std::size_t at = line.find(kKey);
  Index step = -1;
  if (at != std::string_view::npos) std::from_chars(line.data() + at + kKey.size(), line.data() + line.size(), step);
  return step;
}

/// Returns the steps that the lines left are evaluations of.
std::set<Index> drop_later_lines(io::Fs& fs, const io::Path& file, Index last_step) {
  std::set<Index> evaluated;
  if (!fs.exists(file)) return evaluated;
  const io::MappedFile old = fs.map(file);
  std::string kept;
  std::string_view rest = old.text();
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;  // a torn last line
    const std::string_view line = rest.substr(0, end + 1);
    rest.remove_prefix(end + 1);
    const Index step = step_of(line);
    if (step < 0 || step > last_step) continue;
    kept += line;
    if (line.starts_with(kEvaluation)) evaluated.insert(step);
  }
  io::publish_file(fs, file, kept);
  return evaluated;
}

}  // namespace

std::string Spike::text() const {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "the %s %.4g is %.3g times its mean", name, value, times());
  return text.data();
}

std::vector<Spike> spikes_of(const StepReport& report) {
  std::vector<Spike> spikes;
  if ((report.spikes & ops::kLossSpike) != 0) spikes.push_back({"loss", "loss", report.loss, report.means.loss});
  if ((report.spikes & ops::kNormSpike) != 0)
    spikes.push_back({"grad_norm", "gradient norm", report.grad_norm, report.means.norm});
  return spikes;
}

std::vector<Scalar> scalars_of(const StepMetrics& m) {
  std::vector<Scalar> all = {{"train/loss", m.result.loss},
                             {"train/grad_norm", m.result.grad_norm},
                             {"train/lr", m.result.learning_rate},
                             {"speed/tokens_per_second", m.tokens_per_second},
                             {"speed/step_time_s", m.step_time_s}};
  if (m.batch > 0) all.push_back({"train/batch", static_cast<double>(m.batch)});
  if (m.result.losses.are_parts()) {
    for (const LossMean& loss : m.result.losses) all.push_back({str("train/", loss.name), loss.mean});
    if (is_masked_lm(m.result.losses)) all.push_back({"train/perplexity", std::exp(m.result.losses[0].mean)});
  }
  const MoeReport& moe = m.result.moe;
  if (moe.empty()) return all;
  all.push_back({"moe/aux_loss", moe.aux_loss});
  all.push_back({"moe/z_loss", moe.z_loss});
  all.push_back({"moe/rerun", m.result.rerun ? 1.0 : 0.0});
  for (const ExpertLoad& load : moe.layers) {
    const std::string layer = str("moe/layer_", load.layer, '/');
    all.push_back({layer + "max_over_mean", load.max_over_mean});
    all.push_back({layer + "p95_over_mean", load.p95_over_mean});
    all.push_back({layer + "empty", static_cast<double>(load.empty)});
    all.push_back({layer + "choices", static_cast<double>(load.choices)});
    all.push_back({layer + "dropped", static_cast<double>(load.dropped)});
    for (std::size_t position = 0; position < load.hottest.size(); ++position) {
      const auto& [expert, share] = load.hottest[position];
      const std::string name = str(layer, "hottest_", position + 1, '_');
      all.push_back({name + "expert", static_cast<double>(expert)});
      all.push_back({name + "share", share});
    }
    if (load.echo) {
      const std::pair<const char*, double> numbers[] = {{"before", load.echo->before},
                                                        {"after", load.echo->after},
                                                        {"moved", static_cast<double>(load.echo->moved)},
                                                        {"clones", static_cast<double>(load.echo->clones)},
                                                        {"wanted", static_cast<double>(load.echo->wanted)},
                                                        {"dropped", static_cast<double>(load.echo->dropped)},
                                                        {"bytes", load.echo->bytes},
                                                        {"exposed_us", load.echo->exposed_us}};
      for (const auto& [name, value] : numbers) all.push_back({str(layer, "echo/", name), value});
    }
    if (!moe.has_bias) continue;
    all.push_back({layer + "bias_min", load.bias_min});
    all.push_back({layer + "bias_max", load.bias_max});
  }
  return all;
}

MetricsLog::MetricsLog(io::Fs& fs, const io::Path& file, Index resumed_step)
    : evaluated_(drop_later_lines(fs, file, resumed_step)), file_(fs, file) {}

void MetricsLog::write(const StepMetrics& m) {
  std::string spikes;
  for (const Spike& spike : spikes_of(m.result)) spikes += str(",\"", spike.key, "_spike\":", number(spike.times()));
  line(str(kStep, m.step, ",\"loss\":", number(m.result.loss), parts_of(m.result.losses),
           is_masked_lm(m.result.losses) ? perplexity_of(m.result.losses) : "",
           ",\"grad_norm\":", number(m.result.grad_norm), ",\"lr\":", number(m.result.learning_rate),
           ",\"loss_scale\":", number(m.result.loss_scale), ",\"skipped\":", m.result.skipped ? 1 : 0, spikes,
           m.result.rerun ? str(",\"rerun\":1,\"rows_factor\":", number(m.result.rows_factor)) : "",
           ",\"tokens\":", m.tokens, m.batch > 0 ? str(",\"batch\":", m.batch) : "",
           ",\"step_time_s\":", number(m.step_time_s), ",\"tokens_per_second\":", number(m.tokens_per_second),
           ",\"model_tflops_per_s\":", number(m.model_tflops_per_s), ",\"missed_saves\":", m.missed_saves,
           ",\"memory_bytes\":", m.memory_bytes, m.result.moe.empty() ? "" : ",\"moe\":" + m.result.moe.json(), "}"));
}

void MetricsLog::write_eval(Index step, const HeldOutResult& held_out) {
  const Evaluated& result = held_out.result;
  evaluated_.insert(step);
  std::string rest;
  for (const auto& [name, value] : held_out.figures)
    rest += str(",\"", name, "\":", std::visit([](auto figure) { return number(static_cast<double>(figure)); }, value));
  if (held_out.figures.empty()) rest = parts_of(result.losses) + perplexity_of(result.losses);
  line(str(kEvaluation, json_text(held_out.name), ",\"step\":", step, ",\"loss\":", number(result.loss), rest, "}"));
}

void MetricsLog::write_choices(Index step, const ChoiceResult& result) {
  evaluated_.insert(step);
  std::string figures;
  for (const auto& [name, value] : result.figures) figures += str(",\"", name, "\":", number(value));
  line(str(kEvaluation, json_text(result.name), ",\"step\":", step, ",\"questions\":", result.questions, figures, "}"));
}

void MetricsLog::write_graphs(Index step, const GraphAccount& a) {
  line(str("{\"graphs\":", a.graphs, ",\"step\":", step, ",\"launches\":", a.launches, ",\"comm_calls\":", a.comm_calls,
           ",\"ops\":", a.ops, ",\"nodes\":", a.nodes, ",\"static_input_bytes\":", a.touched.inputs.bytes,
           ",\"second_input_bytes\":", a.touched.second_inputs.bytes,
           ",\"output_grad_bytes\":", a.touched.output_grads.bytes, ",\"boundary_bytes\":", a.touched.outputs.bytes,
           ",\"scratch_bytes\":", a.scratch_bytes, ",\"fragmentation_bytes\":", a.fragmentation_bytes,
           ",\"device_bytes\":", a.device_bytes, ",\"capture_s\":", number(a.capture_s),
           ",\"instantiate_s\":", number(a.instantiate_s), ",\"launch_s\":", number(a.launch_s), "}"));
}

Index last_step_of_metrics(io::Fs& fs, const io::Path& file) {
  if (!fs.exists(file)) return 0;
  const io::MappedFile log = fs.map(file);
  std::string_view rest = log.text().substr(0, log.text().rfind('\n') + 1);  // 0: no complete line
  while (!rest.empty()) {
    const std::size_t begin = rest.substr(0, rest.size() - 1).rfind('\n') + 1;
    if (rest.substr(begin).starts_with(kStep)) return std::max<Index>(0, step_of(rest.substr(begin)));
    rest = rest.substr(0, begin);
  }
  return 0;
}

}  // namespace megalith::train
