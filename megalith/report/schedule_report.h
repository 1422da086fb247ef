#pragma once
#include <string>

#include "megalith/pipeline/schedule.h"

namespace megalith::apps {

enum class ScheduleFormat { text, json };
enum class TimelineExtent { ends, full };  ///< how much of a long timeline is drawn

struct ScheduleRequest {
  pipeline::ScheduleShape shape;
  ScheduleFormat format = ScheduleFormat::text;
  int width = 120;  ///< of the text, in characters
  TimelineExtent extent = TimelineExtent::ends;
};

/// What `megalith schedule` prints, newline included. Text: the numbers of the schedule, a table with a row a stage,
/// and the timeline of all stages as the simulation runs it with free communication. JSON: one object with the schedule
/// table and, for each stage, its lists and counts.
/// Throws ConfigError naming every broken rule, also when there is too much to print (more than 2^18 chunks of
/// microbatches over all stages).
std::string schedule_report(const ScheduleRequest& request);

}  // namespace megalith::apps
