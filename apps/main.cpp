#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/config/run_config.h"
#include "megalith/io/fs.h"
#include "megalith/tensor/gpu_pretence.h"

#include "apps/bench/bench.h"
#include "apps/program/command.h"
#include "apps/program/help_formatter.h"
#include "apps/program/launch.h"
#include "apps/program/list_values.h"
#include "apps/program/signals.h"
#include "apps/program/version.h"

namespace megalith::apps {
namespace {

/// All long options of the program and its subcommands, and whether the next argument is their value.
void collect_options(const CLI::App& app, std::map<std::string, bool>& takes_value) {
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      takes_value["--" + name] |= option->get_items_expected_min() > 0;
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    collect_options(*sub, takes_value);
}

/// "--world_size=4" -> "--world-size=4" if there is such an option. Values are not changed.
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

/// Under mpirun every process runs the program. Commands that are no job of all ranks run in the first process only.
bool is_left_to_the_first(const std::vector<std::string>& arguments, const Launcher& launcher) {
  if (arguments.empty() || launcher.process == 0) return false;
  if (arguments.front() == "data") return arguments.size() < 2 || arguments[1] != "dedup";
  constexpr std::string_view kOfAllRanks[] = {"train", "eval", "score", "generate"};
  if (arguments.front() != "bench") return std::ranges::find(kOfAllRanks, arguments.front()) == std::end(kOfAllRanks);
  return arguments.size() > 1 && is_bench_of_ops(arguments[1]);
}

/// Commands of other programs, and ours.
constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {{"help", "--help"},
                                                                         {"version", "--version"},
                                                                         {"pretrain", "train"},
                                                                         {"fine-tune", "finetune"},
                                                                         {"supervise", "run"},
                                                                         {"torchrun", "run"},
                                                                         {"resume", "train --resume"},
                                                                         {"evaluate", "eval"},
                                                                         {"perplexity", "eval"},
                                                                         {"lambada", "eval --task lambada"},
                                                                         {"wikitext", "eval --task wikitext"},
                                                                         {"test", "eval"},
                                                                         {"sample", "generate"},
                                                                         {"infer", "generate"},
                                                                         {"inference", "generate"},
                                                                         {"chat", "generate"},
                                                                         {"memory", "plan"},
                                                                         {"estimate", "plan"},
                                                                         {"encode", "tokenize"},
                                                                         {"decode", "tokenize --decode"},
                                                                         {"preprocess", "data build"},
                                                                         {"prepare", "data build"},
                                                                         {"convert", "checkpoint import-hf"},
                                                                         {"import", "checkpoint import-hf"},
                                                                         {"export", "checkpoint export-hf"},
                                                                         {"benchmark", "bench"},
                                                                         {"profile", "bench step --profile"},
                                                                         {"env", "doctor"},
                                                                         {"plot", "report"},
                                                                         {"dashboard", "report"},
                                                                         {"tensorboard", "report"}};

std::vector<const CLI::App*> commands_of(const CLI::App& group) {
  return group.get_subcommands([](const CLI::App*) { return true; });
}

/// The command after `path` that was meant by an unknown word; empty if none is similar.
std::string meant_by(const CLI::App& group, std::string_view path, std::string_view word) {
  const bool is_program = group.get_parent() == nullptr;
  for (const auto& [other, ours] : kOtherNames) {
    if (word == other && (is_program || ours == "--help")) return str(path, ' ', ours);
  }
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(group)) {
    names.push_back(command->get_name());
    for (const CLI::App* inner : commands_of(*command)) {
      if (inner->get_name() == word) return str(path, ' ', command->get_name(), ' ', word);
    }
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string_view near = nearest(word, candidates);
  return near.empty() ? "" : str(path, ' ', near);
}

/// The error for the first word that should be a command and is none; empty if there is no such word. Options before a
/// command take no values.
std::string unknown_command(const CLI::App& program, const std::vector<std::string>& arguments) {
  const CLI::App* group = &program;
  std::string path = program.get_name();
  for (const std::string& word : arguments) {
    const std::vector<const CLI::App*> commands = commands_of(*group);
    if (commands.empty()) break;
    if (word.starts_with('-')) continue;
    const auto found = std::ranges::find(commands, word, [](const CLI::App* command) { return command->get_name(); });
    if (found == commands.end()) {
      const std::string meant = meant_by(*group, path, word);
      const bool takes_paths = group->get_option_no_throw("outs") != nullptr;
      if (takes_paths && (meant.empty() || io::posix_fs()->exists(word))) break;
      return str(path, ' ', word, ": no such command; ", meant.empty() ? "" : str("did you mean ", meant, "? "), '`',
                 path, " --help` lists all");
    }
    group = *found;
    path += ' ' + word;
  }
  return "";
}

/// The error for wrong arguments. CLI11 does not report the form that a value should have had. `list` names where the
/// options are listed.
std::string text_of(const CLI::ParseError& error, std::string_view list) {
  constexpr std::string_view kNotConverted = "Could not convert: ";
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) == nullptr || !text.starts_with(kNotConverted)) return text;
  return str(text.substr(kNotConverted.size()), ": is not of the type that ", list,
             " gives for the option, or outside its range");
}

/// Names of other programs for the checkpoint of a command.
constexpr std::string_view kNamesOfCheckpoint[] = {"--model", "--model-path", "--model-dir", "--model-name-or-path",
                                                   "--ckpt",  "--ckpt-path",  "--load"};

/// The option that was meant by one that a command does not have.
config::MeantKey meant_option(const CLI::App& command, std::string option) {
  std::ranges::replace(option, '_', '-');
  const bool takes_checkpoint = command.get_option_no_throw("--checkpoint") != nullptr;
  if (takes_checkpoint && std::ranges::find(kNamesOfCheckpoint, option) != std::end(kNamesOfCheckpoint))
    return {"--checkpoint"};
  if (command.get_option_no_throw("--set") == nullptr) return {};
  if (option == "--model" && !takes_checkpoint)
    return {"",
            "A recipe describes its model: --set model.preset=NAME takes a published one, --set train.init=FOLDER the "
            "values of a checkpoint"};
  return config::meant_key(option);
}

/// Errors for options that a command does not have, one per line, with the option that was meant if it is known. Empty
/// if there are none.
std::string unknown_options(const CLI::App& program) {
  const CLI::App* command = &program;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  std::vector<std::string> names;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  bool has_hint = false;
  std::string text;
  for (const std::string& argument : command->remaining()) {
    if (!argument.starts_with("--")) continue;
    const std::string option = argument.substr(0, argument.find('='));
    const config::MeantKey key = meant_option(*command, option);
    std::string meant(key.is_none() ? nearest(option, candidates) : key.key);
    if (key.key.find('.') != std::string_view::npos) meant = str("--set ", key.key, "=VALUE");
    has_hint = has_hint || !meant.empty() || !key.how.empty();
    text += str("error: ", option, ": no such option", meant.empty() ? "" : str("; did you mean ", meant, "?"),
                key.how.empty() ? "" : str(meant.empty() ? ". " : " ", key.how), '\n');
  }
  return has_hint ? text : "";
}

struct CommandExample {
  std::string_view command, arguments;
};

/// Ends of the help of commands whose own file has none.
constexpr CommandExample kExamples[] = {
    {"train", "recipes/demo.toml --set parallel.tp=2"},
    {"run", "recipes/demo.toml --max-restarts 5 --window 1h"},
    {"run", "recipes/demo.toml --out out/mpi -- mpirun -np 4 --bind-to none"},
    {"finetune", "mnli.toml --lr 1e-5,2e-5 --batch 16,32 --ensemble"},
    {"generate", "--checkpoint out/demo --prompt 'Mr. Darcy' --max-tokens 120 --temperature 0.7"},
    {"score", "--checkpoint out/demo --tokens ids.json"},
    {"eval", "out/demo --task loss --data valid.txt"},
    {"eval", "--task squad2 --data dev-v2.0.json --score predictions.json"},
    {"report", "out/demo out/pp4 --output runs.html"},
    {"trace", "steps.json"},
    {"report table3", "mine=wikitext.json mine=lambada.json"},
    {"report table5", "mine=mnli.json mine=squad2.json"},
    {"report table6", "mine=out/mnli/report.json"},
    {"verify", "recipes/demo.toml --grid one --grid 'tp=2 pp=2' --steps 3 --set train.precision=fp64"},
    {"plan", "recipes/demo.toml --ranks 8 --set parallel.tp=2"},
    {"recipe", "recipes/demo.toml --set train.steps=100"},
    {"checkpoint info", "out/demo"},
    {"checkpoint verify", "out/demo"},
    {"checkpoint diff", "out/a out/b --within 1e-6"},
    {"checkpoint average", "out/demo/checkpoints/step_00000100 out/demo/checkpoints/step_00000200 --out out/mean"},
    {"checkpoint prune", "out/demo --keep 3 --every 1000 --dry-run"},
    {"checkpoint reshard", "out/demo --grid 'tp=2 pp=2' --out out/demo-tp2"},
    {"checkpoint import-hf", "hf/gpt2 --out out/gpt2"},
    {"checkpoint export-hf", "out/demo --out hf/demo"},
    {"groups", "--world-size 16 --tp 4 --pp 2"},
    {"schedule", "--pp 4 --vpp 2 --microbatches 8"},
    {"graphs", "recipes/demo.toml --set graphs.mode=layers"},
    {"echo", "--zipf 0.5"},
    {"bench gemm", "--tokens 256 --hidden 768"},
    {"bench attention", "--seq 1024 --heads 12"},
    {"bench norm", "--tokens 4096 --hidden 768"},
    {"bench llama", "--hidden 768 --heads 12 --ffn 2048"},
    {"bench echo", "--ranks 4 --experts 64 --slots 3"},
    {"bench moe", "--experts 8 --top-k 2 --ep 2 --load hot"},
    {"bench grouped", "--rows 4096 --groups 8 --n 1536 --k 768 --sizes zipf:1 --gemm"},
    {"bench rows", "--tokens 4096 --experts 8 --top-k 2"},
    {"bench elementwise", "--tokens 4096 --hidden 768"},
    {"bench loss", "--tokens 1024 --vocab 50304"},
    {"bench embedding", "--vocab 50304 --hidden 768"},
    {"bench adamw", "--params 10000000"},
    {"bench collectives", "--ranks 4 --max 16MiB"},
    {"bench step", "--layers 6 --hidden 384 --heads 6 --seq 256 --vocab 256 --batch 16 --tp 2"},
    {"doctor", "--format json"},
};

void add_examples(CLI::App& program) {
  for (const CommandExample& example : kExamples) {
    CLI::App* command = &program;
    std::istringstream path{std::string(example.command)};
    for (std::string word; path >> word;) command = command->get_subcommand(word);
    const std::string before = command->get_footer();
    command->footer(str(before, before.empty() || before.ends_with('\n') ? "" : "\n", "  megalith ", example.command,
                        ' ', example.arguments));
  }
}

/// Refuses a command line. `errors` are lines that begin with "error: "; `help` follows them. An error of all
/// processes is printed by the first one. Its end ends the job, and the others wait for that. A process that still
/// runs after the wait prints its lines with its rank: it fails alone, or the launcher ends nothing.
int refuse(const Launcher& launcher, const std::string& errors, const std::string& help = "") {
  constexpr std::string_view kError = "error: ";
  constexpr auto kForTheFirst = std::chrono::seconds(2);
  if (launcher.process == 0) {
    std::fputs((errors + help).c_str(), stderr);
    return static_cast<int>(ExitCode::usage);
  }
  std::this_thread::sleep_for(kForTheFirst);
  std::istringstream lines(errors);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kError)) line.insert(kError.size(), str("rank ", launcher.process, ": "));
    text += line + '\n';
  }
  std::fputs(text.c_str(), stderr);
  return static_cast<int>(ExitCode::usage);
}

/// The exit code of a command that does not fail.
template <class Command>
int code_of_result(Command&& command) {
  try {
    command();
  } catch (const Differs&) {
    return Differs::kExitCode;
  }
  return 0;
}

/// Parses and runs a command. Only it and refuse() print errors.
int run(CLI::App& program, std::vector<std::string> arguments, const Launcher& launcher) {
  if (const std::string unknown = unknown_command(program, arguments); !unknown.empty())
    return refuse(launcher, str("error: ", unknown, '\n'));
  if (is_left_to_the_first(arguments, launcher)) {
    if (launcher.is_beside_the_first) return 0;
    // Process 0 may run another command and wait for this one.
    return refuse(launcher, str("error: ", arguments.front(),
                                ": the first process alone runs it, and mpirun has started that one by another command "
                                "line; start all processes by one (without ` : `)\n"));
  }
  fold_option_names(program, arguments);
  keep_brackets(program, arguments);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 expects the last one first
  try {
    const int code = code_of_result([&] { program.parse(std::move(arguments)); });
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw IoError("standard output: cannot be written");
    return code;
  } catch (const CLI::Success& asked) {  // help or the version
    return program.exit(asked);
  } catch (const CLI::ParseError& error) {
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
        dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      if (const std::string unknown = unknown_options(program); !unknown.empty()) return refuse(launcher, unknown);
    }
    const std::string_view list = launcher.process == 0 ? "the list below" : "--help";
    return refuse(launcher, str("error: ", text_of(error, list), '\n'),
                  program.help());  // for the given command
  } catch (const std::exception& error) {
    return report_error(error, launcher.processes > 0 ? launcher.process : -1);
  }
}

int run(int argc, char** argv) {
  end_on_terminate();
  comm::set_gpu_environment();
  if (const char* const pretence = std::getenv("MEGALITH_GPU_PRETENCE"); pretence != nullptr) {
    try {
      device::pretend(device::parse_pretence(pretence));
    } catch (const std::exception& error) {
      return report_error(error);
    }
    log::warning(str("MEGALITH_GPU_PRETENCE=", pretence, " is set: this run is a test"));
  }
  CLI::App program("megalith trains large transformer language models on any grid of CPUs and GPUs", "megalith");
  program.formatter(std::make_shared<HelpFormatter>());  // for the commands, too
  program.require_subcommand(1);
  program.set_version_flag("--version", version(), "Print the version and the commit that this was built from");
  add_train(program);
  add_run(program);
  add_finetune(program);
  add_generate(program);
  add_score(program);
  add_eval(program);
  add_report(program);
  add_trace(program);
  add_verify(program);
  add_plan(program);
  add_recipe(program);
  add_tokenize(program);
  add_tokenizer_command(program);
  add_data(program);
  add_checkpoint(program);
  add_groups(program);
  add_schedule(program);
  add_graphs(program);
  add_echo(program);
  add_bench(program);
  add_doctor(program);
  add_examples(program);
  try {
    const Launcher launcher = detect_launcher();
    prepare_for_faults(launcher.processes > 0 ? launcher.process : -1);
    warn_of_faults(launcher);
    return run(program, {argv + std::min(argc, 1), argv + argc}, launcher);
  } catch (const std::exception& error) {
    return report_error(error);
  }
}

}  // namespace
}  // namespace megalith::apps

int main(int argc, char** argv) { return megalith::apps::run(argc, argv); }
