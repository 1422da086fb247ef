#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/comm/nccl/gpus.h"

#include "apps/bench.h"
#include "apps/command.h"
#include "apps/launch.h"
#include "apps/version.h"

namespace megalith::apps {
namespace {

/// The program's long options by name, those of subcommands too: whether the next argument is their value.
void collect_options(const CLI::App& app, std::map<std::string, bool>& takes_value) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      takes_value["--" + name] |= option->get_items_expected_min() > 0;
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    collect_options(*sub, takes_value);
}

/// "--world_size=4" -> "--world-size=4" where there is such an option: values stay as they are.
void fold_option_names(const CLI::App& program, std::vector<std::string>& arguments) {
  std::map<std::string, bool> takes_value;
  collect_options(program, takes_value);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string& argument = arguments[i];
    if (argument == "--") return;
    if (!argument.starts_with("--")) continue;
    const std::size_t end = std::min(argument.find('='), argument.size());
    std::string name = argument.substr(0, end);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto option = takes_value.find(name);
    if (option == takes_value.end()) continue;
    argument.replace(0, end, name);
    if (option->second && end == argument.size()) ++i;
  }
}

/// Under mpirun every process runs the program; commands that are no job of all ranks leave the work to the first.
bool is_left_to_the_first(const std::vector<std::string>& arguments, const Launcher& launcher) {
  if (arguments.empty() || launcher.process == 0) return false;
  if (arguments.front() != "bench") return arguments.front() != "train";
  return arguments.size() > 1 && is_bench_of_ops(arguments[1]);
}

/// What is wrong with the arguments. CLI11 does not say what a value that it cannot convert should have been.
std::string text_of(const CLI::ParseError& error) {
  constexpr std::string_view kNotConverted = "Could not convert: ";
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) == nullptr || !text.starts_with(kNotConverted)) return text;
  return text.substr(kNotConverted.size()) +
         ": is not of the type that the list below gives for the option, or outside its range";
}

/// Parses and runs a command. Errors are printed here, and here only.
int run(CLI::App& program, std::vector<std::string> arguments, const Launcher& launcher) {
  if (is_left_to_the_first(arguments, launcher)) return 0;
  fold_option_names(program, arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them last first
  try {
    program.parse(std::move(arguments));
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw IoError("standard output: cannot be written");
    return 0;
  } catch (const CLI::Success& asked) {  // for help or the version
    return program.exit(asked);
  } catch (const CLI::ParseError& error) {
    if (launcher.process > 0) return static_cast<int>(ExitCode::usage);  // the first process says it
    std::fprintf(stderr, "error: %s\n", text_of(error).c_str());
    const CLI::App* where = program.get_subcommands().empty() ? &program : program.get_subcommands().front();
    std::fprintf(stderr, "%s", where->help().c_str());
    return static_cast<int>(ExitCode::usage);
  } catch (const std::exception& error) {
    return report_error(error, launcher.processes > 0 ? launcher.process : -1);
  }
}

int run(int argc, char** argv) {
  comm::set_gpu_environment();
  CLI::App program("megalith trains large transformer language models on any grid of CPUs and GPUs", "megalith");
  program.require_subcommand(1);
  program.set_version_flag("--version", version(), "Print the version and the commit that this was built from");
  add_train(program);
  add_generate(program);
  add_score(program);
  add_plan(program);
  add_tokenize(program);
  add_data(program);
  add_checkpoint(program);
  add_groups(program);
  add_schedule(program);
  add_graphs(program);
  add_bench(program);
  add_doctor(program);
  try {
    return run(program, {argv + std::min(argc, 1), argv + argc}, detect_launcher());
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace
}  // namespace megalith::apps

int main(int argc, char** argv) { return megalith::apps::run(argc, argv); }
