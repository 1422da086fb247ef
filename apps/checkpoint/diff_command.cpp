#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/difference.h"
#include "megalith/config/model_changes.h"
#include "megalith/config/run_plan.h"
#include "megalith/io/retrying_fs.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/checkpoint_tools.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/command.h"
#include "apps/program/report_lines.h"

namespace megalith::apps {
namespace {

using checkpoint::TensorDifference;
using nlohmann::ordered_json;

struct DiffOptions {
  std::string a, b;
  std::string format = "text";
  double within = 0;
};

/// A value that one checkpoint has and the other has not, or has otherwise.
struct ScalarDifference {
  std::string name, a, b;
};

/// "" for a name that is not there.
template <class Map, class Print>
void compare_maps(const std::string& kind, const Map& a, const Map& b, Print&& print,
                  std::vector<ScalarDifference>& found) {
  std::set<std::string> names;
  for (const Map* const map : {&a, &b})
    for (const auto& [name, value] : *map) names.insert(name);
  for (const std::string& name : names) {
    const auto text = [&](const Map& map) {
      const auto at = map.find(name);
      return at == map.end() ? std::string() : print(at->second);
    };
    if (text(a) != text(b)) found.push_back({str(kind, '.', name), text(a), text(b)});
  }
}

/// Step, counters and scales that differ: what the state digest has in addition to tensors.
std::vector<ScalarDifference> scalar_differences(const checkpoint::RunState& a, const checkpoint::RunState& b) {
  std::vector<ScalarDifference> found;
  if (a.step != b.step) found.push_back({"step", std::to_string(a.step), std::to_string(b.step)});
  compare_maps(
      "integers", a.integers, b.integers, [](std::int64_t value) { return std::to_string(value); }, found);
  compare_maps(
      "reals", a.reals, b.reals, [](double value) { return exact(value); }, found);
  return found;
}

/// Throws CheckpointError unless both have the same model: the keys that make it another one, and the tensors of other
/// shapes.
void require_one_model(const checkpoint::CheckpointReader& a, const checkpoint::CheckpointReader& b) {
  std::vector<std::string> lines;
  const auto plan = [](const checkpoint::CheckpointReader& reader) { return config::resolve(recipe_of(reader)); };
  for (const std::string& line : config::model_changes(plan(a), plan(b)).refused) lines.push_back(line);
  for (const checkpoint::TensorRecord& tensor : a.manifest().tensors) {
    const checkpoint::TensorRecord* const other = b.manifest().find(tensor.name);
    if (other != nullptr && other->shape != tensor.shape)
      lines.push_back(str(tensor.name, ": is ", tensor.shape, " in A and ", other->shape, " in B"));
  }
  if (lines.empty()) return;
  constexpr std::size_t kMaxLines = 40;
  std::string text =
      str("[checkpoint diff] A = ", a.folder().string(), " and B = ", b.folder().string(), " are of different models:");
  for (std::size_t i = 0; i < lines.size() && i < kMaxLines; ++i) text += "\n  " + lines[i];
  if (lines.size() > kMaxLines) text += str("\n  and ", lines.size() - kMaxLines, " more");
  throw CheckpointError(CheckpointError::Kind::refused, text);
}

std::string place_of(const TensorDifference& tensor) {
  std::string text;
  for (int d = 0; d < tensor.a->shape.rank(); ++d)
    text += str(d > 0 ? ", " : "", tensor.at[static_cast<std::size_t>(d)]);
  return '[' + text + ']';
}

std::string value_text(double value, DType dtype) {
  return dtype == DType::f64 ? exact(value) : exact(static_cast<float>(value));
}

std::string text_of(const TensorDifference& tensor, double within) {
  using enum TensorDifference::Kind;
  if (tensor.kind == equal) return "equal";
  if (tensor.kind == only_in_a) return str("only in A, of shape ", tensor.a->shape);
  if (tensor.kind == only_in_b) return str("only in B, of shape ", tensor.b->shape);
  std::string text;
  if (tensor.a->dtype != tensor.b->dtype)
    text = str(name_of(tensor.a->dtype), " in A, ", name_of(tensor.b->dtype), " in B; ");
  if (tensor.different == 0) return text + "all values are equal";
  text += str(tensor.different, " of ", tensor.a->shape.numel(), " elements differ; largest difference ",
              printed("%.3g", tensor.largest));
  if (tensor.scale > 0) text += str(" (", printed("%.3g", tensor.largest / tensor.scale), " of the largest magnitude)");
  text += str(" at ", place_of(tensor), ": ", value_text(tensor.value_a, tensor.a->dtype), " in A, ",
              value_text(tensor.value_b, tensor.b->dtype), " in B");
  return tensor.is_within(within) && within > 0 ? text + "; --within accepts this" : text;
}

ordered_json number(double value) {
  if (std::isfinite(value)) return value;
  return exact(value);  // JSON has no number for it
}

ordered_json json_of(const TensorDifference& tensor, double within) {
  using enum TensorDifference::Kind;
  constexpr const char* kKinds[] = {"equal", "values", "shape", "only_in_a", "only_in_b"};
  ordered_json json = {{"name", tensor.name}, {"result", kKinds[static_cast<int>(tensor.kind)]}};
  if (tensor.kind != values) return json;
  ordered_json at = ordered_json::array();
  for (int d = 0; d < tensor.a->shape.rank(); ++d) at.push_back(tensor.at[static_cast<std::size_t>(d)]);
  json["dtypes"] = {name_of(tensor.a->dtype), name_of(tensor.b->dtype)};
  json["different"] = tensor.different;
  json["elements"] = tensor.a->shape.numel();
  json["largest"] = number(tensor.largest);
  json["scale"] = tensor.scale;
  json["at"] = at;
  json["a"] = number(tensor.value_a);
  json["b"] = number(tensor.value_b);
  json["within"] = tensor.is_within(within);
  return json;
}

/// What was found over all tensors.
struct DiffTotals {
  Index equal = 0, within = 0, different = 0;
};

/// Prints one tensor, or adds it to the report in JSON.
void take_tensor(const TensorDifference& tensor, double within, DiffTotals& totals, ordered_json* report) {
  const bool is_equal = tensor.kind == TensorDifference::Kind::equal;
  ++(is_equal ? totals.equal : tensor.is_within(within) ? totals.within : totals.different);
  if (report != nullptr)
    report->push_back(json_of(tensor, within));
  else
    std::printf("  %s: %s\n", tensor.name.c_str(), text_of(tensor, within).c_str());
}

ordered_json json_of(const checkpoint::CheckpointReader& reader) {
  return {{"folder", reader.folder().string()},
          {"step", reader.manifest().run.step},
          {"grid", reader.manifest().run.grid},
          {"state_digest", reader.manifest().digest.hex()}};
}

void print_side(const char* side, const checkpoint::CheckpointReader& reader) {
  std::printf("%s  %s: step %lld, %s, state digest %s\n", side, reader.folder().c_str(),
              static_cast<long long>(reader.manifest().run.step), reader.manifest().run.grid.c_str(),
              reader.manifest().digest.hex().c_str());
}

/// "updates: 4 in A, 8 in B". Whether a number is whole is of no interest here, though its name in JSON has it.
void print_scalars(const std::vector<ScalarDifference>& scalars) {
  const auto text = [](const std::string& value) { return value.empty() ? "absent" : value.c_str(); };
  for (const auto& [name, in_a, in_b] : scalars)
    std::printf("  %s: %s in A, %s in B\n", name.substr(name.find('.') + 1).c_str(), text(in_a), text(in_b));
}

std::string summary(const DiffTotals& totals, std::size_t scalars, double within) {
  std::string text = str(totals.equal, " tensors are equal, ");
  if (within > 0) text += str(totals.within, " differ by what --within ", exact(within), " accepts, ");
  text += str(totals.different, within > 0 ? " differ by more" : " differ");
  return scalars == 0 ? text
                      : str(text, "; of step, counters and scales ", scalars, scalars == 1 ? " differs" : " differ");
}

void diff(const DiffOptions& options) {
  const auto fs = io::retrying_fs(io::posix_fs());
  const auto find = [&](const std::string& given) {
    return checkpoint_folder(*fs, given, checkpoint::OnCorrupt::previous);
  };
  const io::Path folder_a = find(options.a), folder_b = find(options.b);
  checkpoint::CheckpointReader a(*fs, folder_a), b(*fs, folder_b);
  require_one_model(a, b);
  const bool is_json = options.format == "json";
  if (!is_json) {
    print_side("A", a);
    print_side("B", b);
  }
  const std::vector<ScalarDifference> scalars = scalar_differences(a.manifest().run, b.manifest().run);
  DiffTotals totals;
  ordered_json tensors = ordered_json::array();
  checkpoint::compare_tensors(a, b, [&](const TensorDifference& tensor) {
    take_tensor(tensor, options.within, totals, is_json ? &tensors : nullptr);
  });
  const bool is_equal = totals.different == 0 && scalars.empty();
  if (is_json) {
    ordered_json others = ordered_json::array();
    for (const auto& [name, in_a, in_b] : scalars) others.push_back({{"name", name}, {"a", in_a}, {"b", in_b}});
    const ordered_json report = {
        {"a", json_of(a)}, {"b", json_of(b)}, {"equal", is_equal}, {"tensors", tensors}, {"scalars", others}};
    std::printf("%s\n", report.dump(1).c_str());
  } else {
    print_scalars(scalars);
    std::printf("%s\n", summary(totals, scalars.size(), options.within).c_str());
  }
  if (!is_equal) throw Differs();
}

}  // namespace

void add_checkpoint_diff(CLI::App& checkpoint_command) {
  const auto options = std::make_shared<DiffOptions>();
  CLI::App* const leaf = checkpoint_command.add_subcommand(
      "diff", "Compare two checkpoints of one model, of any grids, tensor by tensor. Exit code 0: equal, 1: different");
  constexpr const char* kFolder = "A step_* folder, the folder of them, or OUT of a run: then the newest";
  leaf->add_option("A", options->a, kFolder)->required();
  leaf->add_option("B", options->b, kFolder)->required();
  leaf->add_option("--within", options->within,
                   "Differences of up to this part of a tensor's largest magnitude count as equal")
      ->check(number_that([](double value) { return value >= 0; }, "from 0"));
  leaf->add_option("--format", options->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  leaf->callback([options] { diff(*options); });
}

}  // namespace megalith::apps
