#include <cmath>
#include <cstdio>
#include <memory>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/train/grid_verify.h"

#include "apps/checkpoint/task_init.h"
#include "apps/program/command.h"
#include "apps/program/grid_text.h"
#include "apps/program/launch.h"
#include "apps/program/recipe_options.h"
#include "apps/program/report_lines.h"
#include "apps/program/vocabulary.h"
#include "apps/train/run_inputs.h"

namespace megalith::apps {
namespace {

using nlohmann::ordered_json;
using train::ValueDifference;
using train::VerifyResult;

struct VerifyOptions {
  RecipeOptions recipe;
  std::vector<std::string> grids;
  Index steps = 3;
  std::optional<Index> ops = {};  ///< 0: none; unset: none in fp64, where all that differs reaches the state, else 1
  std::string format = "text";
};

/// The recipe as both grids train it: on the CPU, op by op.
config::RunConfig verified_recipe(const VerifyOptions& options) {
  config::RunConfig asked = options.recipe.parse();
  if (asked.device.type.value_or("cpu") != "cpu") log::info("verify trains on CPUs, whatever device.type is");
  asked.device.type = "cpu";
  asked.graphs = {};
  asked.parallel.tp_overlap = "none";
  if (asked.moe.replay) log::info("verify does not read moe.replay");
  asked.moe.replay.reset();
  asked.eval.tasks = {};  // it scores nothing
  return asked;
}

/// The plans of all grids. Throws ConfigError with what is wrong in any of them.
std::vector<config::RunPlan> plans_of_grids(io::Fs& fs, const VerifyOptions& options) {
  const config::RunConfig asked = with_task_model(fs, verified_recipe(options));
  std::vector<config::RunPlan> plans;
  std::string problems;
  for (const std::string& grid : options.grids) {
    try {
      plans.push_back(config::resolve(on_grid(asked, "--grid", grid), 0, count_ids(fs)));
    } catch (const ConfigError& error) {
      problems += str(problems.empty() ? "" : "\n", error.what());
    }
  }
  if (!problems.empty()) throw ConfigError(problems);
  Problems steps;
  const Index limit = plans.front().train.steps;
  steps.require(limit == 0 || options.steps <= limit, "--steps", options.steps,
                str("must be at most train.steps = ", limit));
  steps.require(plans.front().train.precision != "fp8", "train.precision", "fp8",
                "there are no bands for tensors between grids; set fp64, fp32, bf16 or fp16");
  const std::string& precision = plans.front().train.precision;
  if (precision == "bf16" || precision == "fp16")
    steps.require(options.ops.value_or(1) <= 1, "--ops", options.ops.value_or(1),
                  str("must be 0 or 1 in ", precision,
                      ": AdamW makes whole steps of gradients that are only rounding errors, so ops of later steps "
                      "have no bands"));
  if (options.ops)
    steps.require(*options.ops <= options.steps, "--ops", *options.ops,
                  str("must be at most --steps = ", options.steps));
  for (const config::RunPlan& plan : plans) {
    steps.require(plan.train.micro_batch == plans.front().train.micro_batch, "train.micro_batch",
                  plan.train.micro_batch,
                  str("follows from the grid ", config::grid_text(plan), ", and is ", plans.front().train.micro_batch,
                      " on ", config::grid_text(plans.front()), ": set it, as both grids must have it"));
  }
  steps.throw_if_any("verify");
  return plans;
}

std::string place_in(const Shape& shape, const std::array<Index, Shape::kMaxRank>& at) {
  std::string text;
  for (int d = 0; d < shape.rank(); ++d) text += str(d > 0 ? ", " : "", at[static_cast<std::size_t>(d)]);
  return shape.rank() == 0 ? "" : str(" at [", text, "] of ", shape);
}

std::string text_of(const ValueDifference& value) {
  if (value.replicas_of >= 0) {
    return str(value.name, place_in(value.shape, value.at), ": replicas on ranks of ",
               value.replicas_of == 0 ? 'A' : 'B', " differ: ", exact(value.a), " and ", exact(value.b));
  }
  return str(value.name, place_in(value.shape, value.at), ": ", exact(value.a), " on A, ", exact(value.b),
             " on B: ", printed("%.2g", value.largest), " of the largest value, band ", printed("%.0e", value.band));
}

std::string names_of(const std::vector<std::string>& names, const char* between) {
  std::string text;
  for (const std::string& name : names) text += str(text.empty() ? "" : between, name);
  return text;
}

/// Two multiples of a gradient are one within it.
constexpr double kTimesBand = 1e-3;

std::string text_of(const train::OpDifference& op, Index num_layers) {
  std::string text = str("first op: ", op.key.op, op.key.parameters.empty() ? "" : " with ",
                         names_of(op.key.parameters, ", "), " (", train::describe(op.key, num_layers), ")\n  ");
  if (op.gradient_of.empty())
    text += str("result ", op.result + 1, " of ", op.results);
  else
    text += "gradient of " + op.gradient_of;
  text += str(place_in(op.shape, op.at), ": ", exact(op.a), " on A, ", exact(op.b),
              " on B: ", printed("%.2g", op.largest), " of the largest value, band ", printed("%.0e", op.band),
              op.times == 0 ? "" : str("; B has ", printed("%.6g", op.times), " times the values of A"),
              op.note.empty() ? "" : "; " + op.note, '\n');
  for (std::size_t grid = 0; grid < op.path.size(); ++grid)
    text += str("  since the last results that agree, ", grid == 0 ? 'A' : 'B', " ran: ", names_of(op.path[grid], ", "),
                '\n');
  for (std::size_t grid = 0; grid < op.unsummed.size(); ++grid)
    if (!op.unsummed[grid].empty())
      text += str("  on ", grid == 0 ? 'A' : 'B', " ranks of tp or etp have terms of the sum that ",
                  names_of(op.unsummed[grid], ", "), " gives, and nothing has added them up\n");
  return text;
}

std::string text_of(const train::GradientSum& sum) {
  const auto over = [](const std::vector<std::string>& axes) {
    return axes.empty() ? std::string("what the passes of one rank gave")
                        : "the sum over " + names_of(axes, ", ") + " of what the passes gave";
  };
  if (sum.is_right(kTimesBand)) return "is " + over(sum.must_be);
  const std::string must_be = "; it must be " + over(sum.must_be);
  if (!sum.fits) return str("is no sum over ranks of what the passes gave", must_be);
  return str("is ", std::abs(sum.times - 1) <= kTimesBand ? "" : printed("%.6g times ", sum.times), over(sum.over),
             must_be);
}

/// What the numbers of a step that differs lead to, where no op of its passes does.
std::string text_of_rest(const VerifyResult& result) {
  if (!result.ops || result.ops->first) return "";
  std::string text = str("the ", result.ops->compared, " results of the passes agree\n");
  const ValueDifference* const first = result.first_tensor();
  if (first == nullptr) {
    const bool is_loss = result.different.front().name == "loss";
    return text + (is_loss ? "gradients agree: look at the sum of the loss over ranks\n"
                           : "gradients agree: look at sum_of_squares, step_terms and the sum of both over ranks\n");
  }
  for (std::size_t grid = 0; grid < result.last_writers.size(); ++grid) {
    text += str("  ", first->name, " on ", grid == 0 ? 'A' : 'B', ": ");
    if (const auto& sum = result.sums[grid]) text += text_of(*sum) + "; ";
    text += str("written last by ", names_of(result.last_writers[grid], ", "), '\n');
  }
  if (result.changes) {
    text += str("  ", result.changes->elements, " of its elements differ");
    if (result.changes->times != 0)
      text += str("; the step changed them by ", printed("%.6g", result.changes->times), " times as much on B");
    text += '\n';
  }
  return text;
}

constexpr std::size_t kMaxShown = 12;

std::string printed_result(const VerifyResult& result, Index num_layers) {
  std::string text = "largest differences, of the largest value:";
  for (const auto& [kind, largest] : result.largest) text += str(' ', kind, ' ', printed("%.1e", largest), ';');
  text.back() = '\n';
  if (result.agree()) {
    text += str("the grids agree in ", result.steps, result.steps == 1 ? " step\n" : " steps\n");
  } else {
    text += str("step ", result.steps, " differs: ", result.different.size(),
                result.different.size() == 1 ? " number or tensor\n" : " numbers and tensors\n");
    for (std::size_t i = 0; i < result.different.size() && i < kMaxShown; ++i)
      text += "  " + text_of(result.different[i]) + '\n';
    if (result.different.size() > kMaxShown) text += str("  and ", result.different.size() - kMaxShown, " more\n");
  }
  if (result.ops) {
    text += str("ops of the step: ", result.ops->compared, " results compared, ", result.ops->not_comparable,
                " laid out otherwise\n");
    if (result.ops->first) text += text_of(*result.ops->first, num_layers);
    for (const auto& [name, by] : result.parameters)
      text += str("  ", name, " differed before the step: ", printed("%.2g", by), " of the largest value\n");
  }
  return result.agree() ? text : text + text_of_rest(result);
}

ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  return exact(value);
}

ordered_json indices(const Shape& shape, const std::array<Index, Shape::kMaxRank>& at) {
  ordered_json list = ordered_json::array();
  for (int d = 0; d < shape.rank(); ++d) list.push_back(at[static_cast<std::size_t>(d)]);
  return list;
}

ordered_json json_of(const VerifyResult& result, Index num_layers) {
  ordered_json different = ordered_json::array(), largest = ordered_json::object();
  for (const ValueDifference& value : result.different) {
    different.push_back({{"name", value.name},
                         {"at", indices(value.shape, value.at)},
                         {"a", json_number(value.a)},
                         {"b", json_number(value.b)},
                         {"largest", json_number(value.largest)},
                         {"band", value.band}});
    if (value.replicas_of >= 0) different.back()["replicas_of"] = value.replicas_of == 0 ? "A" : "B";
  }
  for (const auto& [kind, by] : result.largest) largest[kind] = json_number(by);
  ordered_json json = {{"agree", result.agree()},
                       {"steps", result.steps},
                       {"losses", result.losses},
                       {"largest", largest},
                       {"different", different}};
  if (!result.ops) return json;
  json["ops_compared"] = result.ops->compared;
  json["ops_not_comparable"] = result.ops->not_comparable;
  if (const ValueDifference* const first = result.first_tensor()) {
    json["first_tensor"] = {{"name", first->name}};
    for (std::size_t grid = 0; grid < result.last_writers.size(); ++grid) {
      ordered_json& side = json["first_tensor"][grid == 0 ? "a" : "b"];
      side["written_by"] = result.last_writers[grid];
      if (const auto& sum = result.sums[grid])
        side["sum"] = {{"fits", sum->fits}, {"over", sum->over}, {"must_be", sum->must_be}, {"times", sum->times}};
    }
  }
  if (const auto& op = result.ops->first) {
    for (const auto& [name, by] : result.parameters) json["parameters_before"][name] = json_number(by);
    json["op"] = {{"name", op->key.op},
                  {"where", train::describe(op->key, num_layers)},
                  {"layer", op->key.layer},
                  {"parameters", op->key.parameters},
                  {"gradient_of", op->gradient_of},
                  {"result", op->result},
                  {"at", indices(op->shape, op->at)},
                  {"a", json_number(op->a)},
                  {"b", json_number(op->b)},
                  {"largest", json_number(op->largest)},
                  {"band", op->band},
                  {"times", op->times},
                  {"note", op->note},
                  {"path_a", op->path[0]},
                  {"path_b", op->path[1]},
                  {"unsummed_a", op->unsummed[0]},
                  {"unsummed_b", op->unsummed[1]}};
  }
  return json;
}

/// Compares the first grid with each other one. Throws Differs where they do not agree.
void verify_recipe(VerifyOptions options) {
  if (options.grids.size() == 1) options.grids.insert(options.grids.begin(), "one");
  const std::shared_ptr<io::Fs> fs = rank_fs(0);
  std::vector<config::RunPlan> plans = plans_of_grids(*fs, options);
  const RunInputs inputs = open_run_inputs(*fs, plans.front());
  for (config::RunPlan& plan : plans) config::set_samples(inputs.data->train().samples, plan);
  const io::Path init = init_of(*fs, plans.front(), {}, train::Resume::no);
  const bool is_json = options.format == "json";
  bool all_agree = true;
  ordered_json reports = ordered_json::array();
  for (std::size_t other = 1; other < plans.size(); ++other) {
    const config::RunPlan &a = plans.front(), &b = plans[other];
    const std::string names =
        str("A: ", config::grid_text(a), "; B: ", config::grid_text(b), "; ", a.train.precision, ", steps of ",
            a.train.batch_after(0), a.train.ramp ? " samples and more" : " samples");
    const VerifyResult result = train::verify_grids({.plans = {&a, &b},
                                                     .data = *inputs.data,
                                                     .identity = inputs.identity,
                                                     .fs = *fs,
                                                     .init = init,
                                                     .steps = options.steps,
                                                     .ops_of_step = options.ops.value_or(a.train.precision != "fp64")});
    all_agree = all_agree && result.agree() && !(result.ops && result.ops->first);
    if (is_json) {
      reports.push_back(json_of(result, a.model.num_layers));
      reports.back()["a"] = config::grid_text(a);
      reports.back()["b"] = config::grid_text(b);
    } else {
      print_report(str(names, '\n', printed_result(result, a.model.num_layers)));
    }
  }
  if (is_json) print_report(reports.dump(1) + '\n');
  if (!all_agree) throw Differs();
}

}  // namespace

void add_verify(CLI::App& program) {
  const auto options = std::make_shared<VerifyOptions>();
  CLI::App* const command = program.add_subcommand(
      "verify",
      "Train a recipe on two grids and compare every step: names the first step, tensor and op that differ. Exit code "
      "0: they agree, 1: they differ");
  options->recipe.add_to(*command);
  command->remove_option(command->get_option("--ranks"));
  command
      ->add_option(
          "--grid", options->grids,
          str("A grid (repeat it: the first is compared with each other; one alone with one rank): ", kGridForm))
      ->required()
      ->take_all()
      ->allow_extra_args(false);
  command->add_option("--steps", options->steps, "Steps to compare")
      ->check(between(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--ops", options->ops,
                   "Compare the results of all ops of this step also where nothing differs; 0: of none (default: 1, "
                   "with fp64 0)")
      ->check(between(0, 1'000'000));
  command->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->callback([options] { verify_recipe(*options); });
}

}  // namespace megalith::apps
