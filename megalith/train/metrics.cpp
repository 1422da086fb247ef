#include "megalith/train/metrics.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "megalith/base/str.h"
#include "megalith/base/text.h"

namespace megalith::train {
namespace {

constexpr std::string_view kEvaluation = "{\"eval\":";

/// JSON has no NaN or infinity.
std::string number(double value) { return std::isfinite(value) ? exact(value) : "null"; }

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

std::string duration(double seconds) {
  const auto s = static_cast<long>(seconds + 0.5);
  std::array<char, 32> text{};
  if (s >= 3600)
    std::snprintf(text.data(), text.size(), "%ldh%02ldm", s / 3600, s / 60 % 60);
  else
    std::snprintf(text.data(), text.size(), "%ldm%02lds", s / 60, s % 60);
  return text.data();
}

}  // namespace

MetricsLog::MetricsLog(io::Fs& fs, const io::Path& file, Index resumed_step) {
  evaluated_ = drop_later_lines(fs, file, resumed_step);
  file_ = fs.append(file);
}

void MetricsLog::line(const std::string& text) { file_->write(text + "\n"); }

void MetricsLog::write(const StepMetrics& m) {
  line(str("{\"step\":", m.step, ",\"loss\":", number(m.result.loss), ",\"grad_norm\":", number(m.result.grad_norm),
           ",\"lr\":", number(m.result.learning_rate), ",\"loss_scale\":", number(m.result.loss_scale),
           ",\"skipped\":", m.result.skipped ? 1 : 0, ",\"tokens\":", m.tokens,
           ",\"step_time_s\":", number(m.step_time_s), ",\"tokens_per_second\":", number(m.tokens_per_second),
           ",\"model_tflops_per_s\":", number(m.model_tflops_per_s), ",\"memory_bytes\":", m.memory_bytes, "}"));
}

void MetricsLog::write_eval(Index step, const std::string& name, double loss) {
  evaluated_.insert(step);
  line(str(kEvaluation, "\"", name, "\",\"step\":", step, ",\"loss\":", number(loss),
           ",\"perplexity\":", number(std::exp(loss)), "}"));
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

void ProgressLine::step(const StepMetrics& m) {
  const bool rewritten = style_ == Style::rewritten;
  smoothed_step_s_ = smoothed_step_s_ == 0 ? m.step_time_s : 0.9 * smoothed_step_s_ + 0.1 * m.step_time_s;
  if (!rewritten && m.step % interval_ != 0 && m.step != last_step_) return;
  const double left = smoothed_step_s_ * static_cast<double>(last_step_ - m.step);
  std::array<char, 96> update{};
  if (m.result.skipped) {
    std::snprintf(update.data(), update.size(), "skipped: a gradient overflows at loss scale %g", m.result.loss_scale);
  } else {
    std::snprintf(update.data(), update.size(), "grad norm %.3f  lr %.2e", m.result.grad_norm, m.result.learning_rate);
  }
  std::fprintf(stderr, "%sstep %lld/%lld  loss %.4f  %s  %.0f tokens/s  %.3f TFLOP/s  ETA %s%s",
               rewritten ? "\r\033[K" : "", static_cast<long long>(m.step), static_cast<long long>(last_step_),
               m.result.loss, update.data(), m.tokens_per_second, m.model_tflops_per_s, duration(left).c_str(),
               rewritten ? "" : "\n");
  open_ = rewritten;
  if (rewritten && m.step == last_step_) note("");
}

void ProgressLine::note(const std::string& text) {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
  if (!text.empty()) std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace megalith::train
