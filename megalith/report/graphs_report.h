#pragma once
#include <string>

#include "megalith/config/run_plan.h"

namespace megalith::apps {

enum class GraphsFormat { text, json };

/// What `megalith graphs` prints for a recipe, newline included: for every rank the graphs, launches and bytes of
/// graphs per microbatch, per slot and of a whole step, beside what the memory plan of a run holds anyway. Nothing
/// runs; the layers and bytes are those of train::Engine. All modes are shown, whatever graphs.mode is; graphs.scopes
/// and graphs.warmup_steps are the recipe's. Of a model with experts whose recipe names no scopes it is all that can be
/// captured. What stays eager is listed with the reason. Throws ConfigError when scopes that are named break a rule.
std::string graphs_report(const config::RunPlan& plan, GraphsFormat format);

/// The keys of the JSON, for --help.
extern const char* const kGraphsJsonKeys;

/// A picture (SVG) of the order in which a rank's graphs of layers are recorded and launched: a column for each pass of
/// a chunk, a row for each slot, from a microbatch's forward to its backward. Long orders are cut, with a note.
/// Throws ConfigError for a rank outside the world.
std::string graphs_picture(const config::RunPlan& plan, int rank);

}  // namespace megalith::apps
