#pragma once
#include <string>

#include "megalith/report/echo_costs.h"
#include "megalith/report/echo_run.h"

namespace megalith::apps {

enum class EchoFormat { text, json, svg };
enum class EchoStage { all, spill, assign, slots, shares, plan };

/// What `megalith echo` prints of one plan, newline included. Text: the numbers of a stage, or of all. JSON: an entry
/// of the planner's test vectors, with min_pairs, balance and plan_dropped. SVG: the loads before and after, and an
/// arrow for each clone.
std::string echo_report(const EchoResult& plan, EchoFormat format, EchoStage stage, const EchoCosts& costs);

/// Lines that state when a clone pays; "" where rates are not known.
std::string break_even_text(const EchoCosts& costs);

/// "1.250"
std::string echo_ratio(double value);

}  // namespace megalith::apps
