// The targets for clang's libFuzzer: `fuzz --target=NAME [libFuzzer's options] CORPUS_FOLDER`.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/fuzz_target.h"

namespace {
const megalith::fuzz::Target* target = nullptr;
}

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i)  // libFuzzer passes over what begins with two dashes
    if (std::strncmp((*argv)[i], "--target=", 9) == 0) target = &megalith::fuzz::target_named((*argv)[i] + 9);
  if (target == nullptr) {
    std::fprintf(stderr, "--target=NAME is missing\n");
    std::exit(64);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    target->run({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
