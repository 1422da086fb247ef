#include "apps/program/version.h"

#include "commit.h"  // made by cmake/commit.cmake

namespace megalith::apps {

const char* version() { return "megalith " MEGALITH_VERSION ", " MEGALITH_COMMIT; }

}  // namespace megalith::apps
