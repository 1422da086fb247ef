// Runs one target on its seeds and on random changes of them, or on files: for compilers without libFuzzer, and to look
// at a finding.
//   fuzz_replay TARGET [--first N] [--runs N] [--seconds S] [--write-seeds DIR | --write-input FILE] [FILE...]
// --write-input writes the first input and runs nothing. RUNS is 100,000, with MEGALITH_TESTS=all 200,000.
// Exit code 1 with a line on the input when a promise is broken, or by a signal.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

#include "megalith/base/clock.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/support/sweep.h"

namespace {

using megalith::fuzz::Target;

std::uint64_t current = 0;  // the test's number, for a handler of signals

extern "C" void on_signal(int number) {
  char text[96];
  const int size = std::snprintf(text, sizeof text, "test %llu ends by signal %d\n",
                                 static_cast<unsigned long long>(current), number);
  if (::write(STDERR_FILENO, text, static_cast<std::size_t>(size)) < 0) std::_Exit(2);
  std::_Exit(1);
}

struct Arguments {
  std::string target, seeds_folder, input_file;
  std::uint64_t first = 0, runs = 200000 / static_cast<std::uint64_t>(megalith::support::sweep_stride(2));
  double seconds = 1e9;
  std::vector<std::string> files;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!argument.starts_with("--")) {
      (arguments.target.empty() ? arguments.target : arguments.files.emplace_back()) = argument;
      continue;
    }
    if (++i == argc) throw std::invalid_argument(std::string(argument) + " wants a value");
    if (argument == "--first")
      arguments.first = std::stoull(argv[i]);
    else if (argument == "--runs")
      arguments.runs = std::stoull(argv[i]);
    else if (argument == "--seconds")
      arguments.seconds = std::stod(argv[i]);
    else if (argument == "--write-seeds")
      arguments.seeds_folder = argv[i];
    else if (argument == "--write-input")
      arguments.input_file = argv[i];
    else
      throw std::invalid_argument("no option " + std::string(argument));
  }
  return arguments;
}

void write_seeds(const std::vector<std::string>& seeds, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (std::size_t i = 0; i < seeds.size(); ++i)
    std::ofstream(folder / ("seed-" + std::to_string(i)), std::ios::binary) << seeds[i];
}

int run(const Arguments& arguments) {
  const Target& target = megalith::fuzz::target_named(arguments.target);
  const std::vector<std::string> seeds = target.seeds();
  if (!arguments.seeds_folder.empty()) return write_seeds(seeds, arguments.seeds_folder), 0;
  if (!arguments.input_file.empty()) {
    std::ofstream(arguments.input_file, std::ios::binary) << megalith::fuzz::mutated(target, seeds, arguments.first);
    return 0;
  }
  if (!arguments.files.empty()) {
    for (const std::string& file : arguments.files) {
      std::ostringstream all;
      all << std::ifstream(file, std::ios::binary).rdbuf();
      std::printf("%s: %s\n", file.c_str(), target.run(all.str()) ? "read" : "refused");
    }
    return 0;
  }
  for (const std::string& seed : seeds)
    if (!target.run(seed)) throw std::invalid_argument("a seed is refused");
  std::uint64_t read = 0, done = 0;
  const double start = megalith::monotonic_s();
  for (current = arguments.first; done < arguments.runs && megalith::monotonic_s() - start < arguments.seconds;
       ++current, ++done)
    read += target.run(megalith::fuzz::mutated(target, seeds, current)) ? 1 : 0;
  std::printf("%s: %llu inputs, %llu read, %.1f s\n", arguments.target.c_str(), static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(read), megalith::monotonic_s() - start);
  if (read < done / 100) throw megalith::fuzz::BrokenPromise("nearly no input is read: changes reach too little");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) std::signal(number, on_signal);
  try {
    return run(parse(argc, argv));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 64;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "test %llu: %s\n", static_cast<unsigned long long>(current), error.what());
    return 1;
  }
}
