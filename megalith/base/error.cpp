#include "megalith/base/error.h"

namespace megalith {

std::string code_name(ExitCode code) { return "E" + std::to_string(static_cast<int>(code)); }

}  // namespace megalith
