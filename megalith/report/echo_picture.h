#pragma once
#include <string>

#include "megalith/report/echo_run.h"

namespace megalith::apps {

/// SVG: each rank's load before, of which a part leaves; each rank's load after, with the parts that arrived; an arrow
/// for each clone, from its home to its slot.
std::string echo_picture(const EchoResult& plan);

}  // namespace megalith::apps
