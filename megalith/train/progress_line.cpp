#include "megalith/train/progress_line.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "megalith/base/str.h"

namespace megalith::train {
namespace {

template <class... Values>
std::string printed(const char* format, Values... values) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), format, values...);
  return text.data();
}

std::string duration(double seconds) {
  const long s = std::lround(seconds);
  return s >= 3600 ? printed("%ldh%02ldm", s / 3600, s / 60 % 60) : printed("%ldm%02lds", s / 60, s % 60);
}

/// Three digits with the unit that fits: 0.0123 -> "12.3 GFLOP/s".
std::string flops_text(double tflops) {
  const char* unit = "TFLOP/s";
  double value = tflops;
  if (tflops < 1) {
    unit = tflops < 1e-3 ? "MFLOP/s" : "GFLOP/s";
    value *= tflops < 1e-3 ? 1e6 : 1e3;
  }
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return printed("%.*f %s", decimals, value, unit);
}

/// Why a step has changed nothing.
std::string reason_of_skip(const StepReport& report) {
  if (report.finite) return "skipped: a spike";
  if (!report.where.empty()) return "skipped: loss or gradients are not finite";
  return printed("skipped: a gradient overflows at loss scale %g", report.loss_scale);
}

/// A part of a line, and in which order parts are left out of a narrow one: the largest first, 0 never.
struct Part {
  std::string text;
  int left_out;
};

}  // namespace

std::string ProgressLine::text(const StepMetrics& m, std::size_t columns) const {
  const Span span{interval_before_.steps + since_.steps, interval_before_.seconds + since_.seconds};
  const double step_s = span.seconds / span.steps, faster = m.step_time_s / step_s;
  std::vector<Part> parts = {
      {str("step ", m.step, "/", last_step_), 0},
      {printed("loss %.4f", m.result.loss), 0},
      m.result.skipped ? Part{reason_of_skip(m.result), 3} : Part{printed("norm %.3f", m.result.grad_norm), 3},
      {printed("%.0f tokens/s", m.tokens_per_second * faster), 1},
      {flops_text(m.model_tflops_per_s * faster), 4},
      {"ETA " + duration(step_s * static_cast<double>(last_step_ - m.step)), 2}};
  if (m.batch > 0) parts.push_back({str("batch ", m.batch), 3});
  if (!m.result.moe.empty()) parts.push_back({printed("load %.2f", m.result.moe.worst().max_over_mean), 3});
  for (const Spike& spike : spikes_of(m.result))
    parts.push_back({printed("spike: %s %.3g x its mean", spike.name, spike.times()), 3});
  if (m.result.rerun)
    parts.push_back({printed("run again: experts need moe.rank_capacity_factor = %.3f", m.result.rows_factor), 3});
  if (const auto ranks = m.result.moe.worst_ranks())
    parts.push_back({printed("ranks %.2f > %.2f", ranks->before, ranks->after), 3});
  if (!m.result.skipped) parts.insert(parts.begin() + 3, {printed("lr %.2e", m.result.learning_rate), 5});
  const auto joined = [&] {
    std::string line;
    for (const Part& part : parts) line += (line.empty() ? "" : "  ") + part.text;
    return line;
  };
  std::string line = joined();
  while (columns > 0 && line.size() > columns) {
    const auto least = std::ranges::max_element(parts, {}, &Part::left_out);
    if (least->left_out == 0) return line.substr(0, columns);
    parts.erase(least);
    line = joined();
  }
  return line;
}

void ProgressLine::step(const StepMetrics& m) {
  since_ = {since_.steps + 1, since_.seconds + m.step_time_s};
  const bool stays = !any_ || m.step % interval_ == 0 || m.step == last_step_;
  const int columns = screen_.columns();
  if (stays) interval_before_ = {};
  // A terminal may wrap before a full row's next character: its last column stays free.
  if (columns > 0) {
    std::fprintf(screen_.file, "\r\033[K%s", text(m, static_cast<std::size_t>(std::max(columns - 1, 1))).c_str());
  } else if (stays) {
    std::fputs(text(m, 0).c_str(), screen_.file);
  }
  open_ = columns > 0 && !stays;
  if (stays) {
    std::fputc('\n', screen_.file);
    // The first step also loads and captures what later ones have: it is no measure of them.
    interval_before_ = any_ ? since_ : Span{};
    since_ = {};
    any_ = true;
  }
  std::fflush(screen_.file);
}

void ProgressLine::note(const std::string& text) {
  if (open_) std::fputc('\n', screen_.file);
  open_ = false;
  std::fprintf(screen_.file, "%s\n", text.c_str());
  std::fflush(screen_.file);
}

}  // namespace megalith::train
