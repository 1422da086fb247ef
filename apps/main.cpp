#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "megalith/base/error.h"

#include "apps/command.h"
#include "apps/launch.h"

namespace megalith::apps {
namespace {

/// "--world_size=4" -> "--world-size=4": only the option's own name is folded, never a value.
std::string fold_option_name(std::string argument) {
  if (!argument.starts_with("--")) return argument;
  const auto end = argument.begin() + static_cast<std::ptrdiff_t>(std::min(argument.find('='), argument.size()));
  std::replace(argument.begin(), end, '_', '-');
  return argument;
}

int run(int argc, char** argv) {
  CLI::App program("megalith trains large transformer language models on any grid of CPUs and GPUs", "megalith");
  program.require_subcommand(1);
  add_train(program);
  add_generate(program);
  add_plan(program);
  add_tokenize(program);
  add_data(program);
  add_checkpoint(program);
  add_groups(program);
  add_schedule(program);
  add_bench(program);
  add_doctor(program);

  std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  std::transform(arguments.begin(), arguments.end(), arguments.begin(), fold_option_name);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
  try {
    program.parse(std::move(arguments));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw IoError("standard output: cannot be written");
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::ParseError& error) {
    if (detect_launcher().process > 0) return static_cast<int>(ExitCode::usage);  // the first process says it
    std::fprintf(stderr, "error: %s\n", error.what());
    const CLI::App* where = program.get_subcommands().empty() ? &program : program.get_subcommands().front();
    std::fprintf(stderr, "%s", where->help().c_str());
    return static_cast<int>(ExitCode::usage);
  } catch (const std::exception& error) {
    const Launcher launcher = detect_launcher();
    return report_error(error, launcher.processes > 0 ? launcher.process : -1);
  }
}

}  // namespace
}  // namespace megalith::apps

int main(int argc, char** argv) { return megalith::apps::run(argc, argv); }
