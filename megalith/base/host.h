#pragma once
#include <string>

namespace megalith {

/// The name of the machine that this process runs on; "unknown" where the system does not say.
std::string host_name();

}  // namespace megalith
