#pragma once
#include <string>

#include "megalith/report/echo_loads.h"
#include "megalith/report/echo_report.h"

namespace megalith::apps {

struct EchoTraceRequest {
  std::string file;  ///< of the trace
  EchoSettings settings;
  EchoCosts costs;
  Index step = 0;    ///< counted from 1; 0: all
  Index layer = -1;  ///< of the model; -1: all with experts
  EchoFormat format = EchoFormat::text;
};

/// What `megalith echo --router-trace` prints, newline included: for each layer the loads with 0 to 8 slots over all
/// microbatches, the clones, their bytes, the slots that suffice, and whether clones pay.
std::string echo_trace_report(const EchoTrace& trace, const EchoTraceRequest& request);

}  // namespace megalith::apps
