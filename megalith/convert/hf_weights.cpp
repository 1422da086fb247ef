#include "megalith/convert/hf_weights.h"

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/reader.h"
#include "megalith/model/chunk.h"

namespace megalith::convert {
namespace {

/// A tensor as doubles.
std::vector<double> values_of(const HfTensor& tensor, const HfFileTensor& theirs) {
  std::vector<double> values(static_cast<std::size_t>(tensor.shape.numel()));
  copy_to_ours(same(tensor.name, tensor.shape), theirs.dtype, theirs.bytes,
               Tensor(values.data(), tensor.shape, DType::f64));
  return values;
}

/// Both tensors may be large: compared without a copy where the types are the same.
bool have_same_values(const HfTensor& tensor, const HfFileTensor& a, const HfFileTensor& b) {
  return (a.dtype == b.dtype && std::ranges::equal(a.bytes, b.bytes)) || values_of(tensor, a) == values_of(tensor, b);
}

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

}  // namespace

std::vector<ParamSpec> learned_params(const model::ModelConfig& model) {
  std::vector<ParamSpec> specs;
  for (ParamSpec& spec : model::declare_whole_model(model))
    if (spec.update == Update::by_gradient) specs.push_back(std::move(spec));
  return specs;
}

std::vector<HfTensor> whole_tensors_of(decltype(HfFamily::tensors_of) of_family, const model::ModelConfig& model,
                                       const std::string& ours, const Shape& shape) {
  std::vector<HfTensor> tensors = of_family(model, ours, shape);
  Index elements = 0;
  for (const HfTensor& tensor : tensors) elements += tensor.shape.numel();
  if (elements != shape.numel())
    throw InternalError(str("[convert] parameter ", ours, ": ", elements, " of ", shape.numel(), " elements"));
  return tensors;
}

HfWeights::HfWeights(io::Fs& fs, const io::Path& folder, const HfModel& model) : model_(model), files_(fs, folder) {
  const HfFamily& family = *model.family;
  const auto any_name = [&](const auto& fits) {
    return std::ranges::any_of(files_.tensors(), [&](const auto& one) { return fits(one.first); });
  };
  if (any_name([&](const std::string& name) { return name.starts_with(family.prefix); })) prefix_ = family.prefix;
  is_fused_ = family.fused_tensors_of != nullptr &&
              any_name([](const std::string& name) { return name.ends_with(kFusedExperts); });
  if (family.lacking_head == no_lacking_head) return;
  std::set<std::string_view> held;
  for (const ParamSpec& param : learned_params(model.config)) {
    const std::string_view head = family.lacking_head(param.slice.name);
    if (head.empty()) continue;
    if (std::ranges::find(lacking_, head) == lacking_.end()) lacking_.push_back(head);
    for (const HfTensor& tensor : tensors_of(param.slice.name, param.slice.global))
      if (find(tensor).tensor != nullptr) held.insert(head);
  }
  std::erase_if(lacking_, [&](std::string_view head) { return held.contains(head); });
}

std::vector<HfTensor> HfWeights::tensors_of(const std::string& ours, const Shape& shape) const {
  const HfFamily& family = *model_.family;
  return whole_tensors_of(is_fused_ ? family.fused_tensors_of : family.tensors_of, model_.config, ours, shape);
}

std::string HfWeights::full_name(std::string_view name) const { return model_.family->full_name(name, prefix_); }

HfWeights::Found HfWeights::find(const HfTensor& tensor) const {
  Found found{full_name(tensor.name), nullptr};
  found.tensor = files_.find(found.name);
  if (found.tensor != nullptr) return found;
  for (const std::string& other : model_.family->other_names(tensor.name)) {
    std::string name = full_name(other);
    if (const HfFileTensor* const theirs = files_.find(name)) return {std::move(name), theirs};
  }
  return found;
}

std::string HfWeights::problem_of(const HfTensor& tensor, const Found& found) const {
  if (found.tensor == nullptr) return str("[", files_.where(), "] tensor \"", found.name, "\" is missing");
  const std::string where = str("[", found.tensor->file, "] tensor \"", found.name, "\" ");
  if (found.tensor->shape != tensor.shape)
    return str(where, "shape = ", found.tensor->shape, ": must be ", tensor.shape, " by config.json");
  if (!is_float(found.tensor->dtype))
    return str(where, "dtype = ", name_of(found.tensor->dtype), ": must be a floating-point type");
  return {};
}

const HfFileTensor& HfWeights::at(const HfTensor& tensor) const {
  const Found found = find(tensor);
  if (const std::string problem = problem_of(tensor, found); !problem.empty()) throw InputError(problem);
  return *found.tensor;
}

bool HfWeights::lacks(std::string_view ours) const {
  return !lacking_.empty() && std::ranges::find(lacking_, model_.family->lacking_head(ours)) != lacking_.end();
}

std::string HfWeights::lacking_heads() const {
  std::string heads;
  for (const std::string_view head : lacking_) heads += str(heads.empty() ? "" : ", ", head);
  return heads;
}

std::string HfWeights::left_out_parts() const {
  std::set<std::string_view> parts;
  for (const auto& [name, found] : files_.tensors()) parts.insert(model_.family->left_out(model_.config, name));
  std::string text;
  for (const std::string_view part : parts) {
    if (!part.empty()) text += str(text.empty() ? "" : ", ", part);
  }
  return text;
}

std::string HfWeights::problem_of_copy(const HfCopy& copy, const HfFileTensor& found) const {
  const HfTensor of = tensors_of(std::string(copy.ours), copy.shape).front(), own = same(copy.name, copy.shape);
  const Found original = find(of);
  if (original.tensor == &found || !problem_of(of, original).empty()) return {};  // a problem of its own
  if (std::string problem = problem_of(own, {copy.name, &found}); !problem.empty()) return problem;
  if (have_same_values(own, found, *original.tensor)) return {};
  return str("[", found.file, "] tensor \"", copy.name, "\": must equal ", of.name, ", to which it is tied");
}

std::string HfWeights::problem_of_zeros(const HfTensor& zero, const Found& found) const {
  if (std::string problem = problem_of(zero, found); !problem.empty()) return problem;
  if (std::ranges::all_of(values_of(zero, *found.tensor), [](double value) { return value == 0; })) return {};
  return str("[", found.tensor->file, "] tensor \"", found.name,
             "\": must be zeros: with this config.json only q, k and v can have biases here");
}

void HfWeights::check() const {
  const HfFamily& family = *model_.family;
  io::FileProblems problems;
  std::set<std::string> used;
  const auto note = [&](std::string problem) {
    if (!problem.empty()) problems.add(std::move(problem));
  };
  for (const ParamSpec& param : learned_params(model_.config)) {
    if (lacks(param.slice.name)) continue;
    for (const HfTensor& tensor : tensors_of(param.slice.name, param.slice.global)) {
      const Found found = find(tensor);
      note(problem_of(tensor, found));
      used.insert(found.name);
    }
  }
  for (const HfCopy& copy : family.copies(model_.config)) {
    const HfFileTensor* const found = files_.find(copy.name);
    if (found != nullptr && used.insert(copy.name).second) note(problem_of_copy(copy, *found));
  }
  for (const HfTensor& zero : family.zeros(model_.config)) {
    const Found found = find(zero);
    if (found.tensor == nullptr || !used.insert(found.name).second) continue;
    note(family.needs_zeros ? problem_of_zeros(zero, found) : problem_of(zero, found));
  }
  for (const auto& [name, found] : files_.tensors()) {
    if (!used.contains(name) && !family.is_ignored(name) && family.left_out(model_.config, name).empty())
      note(str("[", found.file, "] tensor \"", io::printable(name), "\": the ", family.name,
               " of config.json has none"));
  }
  problems.throw_if_any(files_.where());
}

}  // namespace megalith::convert
