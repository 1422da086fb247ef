#pragma once
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "tests/io/temp_dir.h"

namespace megalith::support {

/// The program under test, as a word of a shell command: what the environment variable MEGALITH_PROGRAM names, for
/// tests that run elsewhere than they were built; else the one that was built with them.
inline std::string program() {
  const char* const elsewhere = std::getenv("MEGALITH_PROGRAM");
  return std::string("'") + (elsewhere == nullptr ? MEGALITH_PROGRAM : elsewhere) + "'";
}

/// Starts a command as `ranks` processes. Open MPI keeps memory until the process ends, in plug-ins that are unloaded
/// by then: no leak check there.
inline std::string mpirun(int ranks, const std::string& command) {
  return "env ASAN_OPTIONS=detect_leaks=0 mpirun --allow-run-as-root --bind-to none --oversubscribe --mca "
         "btl_vader_single_copy_mechanism none -np " +
         std::to_string(ranks) + " " + command;
}

/// What a command left behind.
struct Finished {
  int code = -1;  ///< exit code; 128 + signal when a signal ended it
  std::string out, err;
};

/// Runs a shell command with `megalith` standing for the program under test.
inline Finished run_shell(const std::string& command) {
  const TempDir dir;
  const std::string errors = (dir.path() / "stderr").string();
  const std::string text = "megalith() { " + program() + " \"$@\"; }; { " + command + "\n} 2>'" + errors + "'";
  FILE* pipe = ::popen(("bash -c \"$(cat <<'EOF_SHELL'\n" + text + "\nEOF_SHELL\n)\"").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen: " + command);
  Finished finished;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    finished.out.append(buffer.data(), n);
  const int status = ::pclose(pipe);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.err = read_all(errors);
  return finished;
}

inline bool has_gpu() { return run_shell("megalith doctor").out.find("GPU 0") != std::string::npos; }

/// The lines of OUT/metrics.jsonl without what a clock decides.
inline std::vector<std::string> metrics_of(const std::string& out) {
  std::ifstream file(out + "/metrics.jsonl");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    nlohmann::ordered_json object = nlohmann::ordered_json::parse(line);
    for (const char* key : {"step_time_s", "tokens_per_second", "model_tflops_per_s", "memory_bytes"})
      object.erase(key);
    if (object.contains("moe")) {
      for (auto& layer : object["moe"]["layers"])
        if (layer.contains("echo")) layer["echo"].erase("exposed_us");
    }
    lines.push_back(object.dump());
  }
  return lines;
}

}  // namespace megalith::support
