#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/convert/hf_family.h"
#include "megalith/convert/hf_files.h"
#include "megalith/convert/hf_model.h"
#include "megalith/params/param_spec.h"

namespace megalith::convert {

/// The parameters of a model that are learned, whole. Those that a rule updates are the state of a training.
std::vector<ParamSpec> learned_params(const model::ModelConfig& model);

/// The tensors of a folder under the names of its family, compared with the parameters of a model.
class HfWeights {
 public:
  HfWeights(io::Fs& fs, const io::Path& folder, const HfModel& model);

  /// The tensors that fill a parameter of ours, as this folder holds experts.
  std::vector<HfTensor> tensors_of(const std::string& ours, const Shape& shape) const;
  /// Throws InputError for a tensor that is missing or of another shape or type.
  const HfFileTensor& at(const HfTensor& tensor) const;
  /// Whether a parameter of ours belongs to a head of which the folder has no tensor.
  bool lacks(std::string_view ours) const;
  /// "the pooler, the classes of the order": heads of which the folder has no tensor.
  std::string lacking_heads() const;
  /// "pooler (pooler.dense)": what the folder has and the library's class leaves out.
  std::string left_out_parts() const;
  /// Throws InputError with every tensor that is missing, left over, or of another shape, type or value than it must
  /// have.
  void check() const;

 private:
  struct Found {
    std::string name;                      ///< in the files, or the family's own where none has it
    const HfFileTensor* tensor = nullptr;  ///< null: missing
  };
  std::string full_name(std::string_view name) const;
  Found find(const HfTensor& tensor) const;
  /// What breaks a rule; "" for nothing.
  std::string problem_of(const HfTensor& tensor, const Found& found) const;
  std::string problem_of_copy(const HfCopy& copy, const HfFileTensor& found) const;
  std::string problem_of_zeros(const HfTensor& zero, const Found& found) const;

  HfModel model_;
  HfFiles files_;
  std::string prefix_;
  bool is_fused_ = false;                  // one tensor has all experts of a layer
  std::vector<std::string_view> lacking_;  // heads, in the order of parameters
};

/// The tensors of a whole parameter of ours. Throws InternalError unless they have all of its elements.
std::vector<HfTensor> whole_tensors_of(decltype(HfFamily::tensors_of) of_family, const model::ModelConfig& model,
                                       const std::string& ours, const Shape& shape);

}  // namespace megalith::convert
