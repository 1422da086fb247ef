#pragma once
#include <cstdlib>
#include <string>

#include "tests/apps/program.h"

namespace megalith::support {

inline constexpr const char* kNoTransformers =
    "python3 has no transformers: pip install transformers in an environment, and name its Python by "
    "MEGALITH_TEST_PYTHON";

/// A Python with the transformers library: that of MEGALITH_TEST_PYTHON, else python3. Empty: it has none.
inline std::string python_with_transformers() {
  const char* const named = std::getenv("MEGALITH_TEST_PYTHON");
  std::string python = named == nullptr ? "python3" : named;
  return run_shell(python + " -c 'import transformers'").code == 0 ? python : "";
}

}  // namespace megalith::support
