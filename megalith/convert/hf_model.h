#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/convert/hf_files.h"
#include "megalith/io/fs.h"
#include "megalith/model/model_config.h"
#include "megalith/params/param_spec.h"
#include "megalith/tensor/memory.h"

namespace megalith::convert {

// Models as the transformers library keeps them: a folder with config.json and safetensors files. hf_family.h has what
// a family must define; hf_gpt2.cpp, hf_llama.cpp and so on are the families.

struct HfFamily;
class HfWeights;

/// The model of a folder. Its vocab_size is its own, not padded.
struct HfModel {
  const HfFamily* family = nullptr;
  model::ModelConfig config;             ///< with `task`, if it is fine-tuned
  std::string task = {};                 ///< finetuning_task of a fine-tuned model, if it has that key
  std::vector<std::string> labels = {};  ///< the names of its classes by number, if it has classes
};

/// Whether a folder is a model of the transformers library: it has config.json and no checkpoint.
bool is_hf_folder(io::Fs& fs, const io::Path& folder);

/// "GPT2LMHeadModel", ...: the class that loads the export of a model in a family.
std::string_view architecture_of(const HfFamily& family, const model::ModelConfig& model);

/// "bert", ...: the family's name in config.json.
std::string_view model_type_of(const HfModel& model);

/// The model that FOLDER/config.json describes. Throws InputError naming file, key, value and rule: for a family that
/// is not known, and for a model that megalith would compute otherwise.
HfModel read_hf_config(io::Fs& fs, const io::Path& folder);

/// The values of a folder (F32, F16, BF16 or F64 there, converted), slice by slice, for ranks of any grid. One reader
/// per rank. Files are mapped. Heads of BERT that the folder lacks get the values with which a training of this seed
/// starts (train.seed).
class HfReader {
 public:
  HfReader(io::Fs& fs, const io::Path& folder, const HfModel& model, std::uint64_t seed);
  ~HfReader();
  HfReader(const HfReader&) = delete;
  HfReader& operator=(const HfReader&) = delete;

  /// Throws InputError with every tensor that is missing, left over, or of another shape or type. Reads values only of
  /// tensors that must equal another or be 0.
  void check_tensors() const;
  /// Names the heads that are made from the seed, and what is left out: a warning for the user. Empty: there is none.
  std::string warning() const;
  /// Whether the folder has the values of a parameter of this name and whole shape.
  bool has(const TensorSlice& slice);
  /// Fills `values` (f32 or f64, the slice's elements in host memory) of a parameter of ours. Throws InputError for a
  /// tensor that is missing or of another shape. Memory: none where the file has the parameter's own layout or the
  /// slice is all of it, else one whole parameter.
  void read(const TensorSlice& slice, const Tensor& values);

 private:
  /// The parameters of the model, by name; made when one is looked for.
  const std::map<std::string, ParamSpec, std::less<>>& params();
  void initialise(const TensorSlice& slice, const Tensor& values);
  void read_whole(const TensorSlice& slice, const Tensor& values) const;

  HfModel model_;
  std::string name_;  ///< of the folder
  std::uint64_t seed_;
  std::unique_ptr<HfWeights> weights_;
  std::map<std::string, ParamSpec, std::less<>> params_;
  std::string whole_name_;  ///< of the parameter in whole_
  Buffer whole_memory_;
  Tensor whole_;
};

/// The family in which a model can be exported. Throws InputError naming, for each family, a part that the model lacks.
const HfFamily& hf_family_for(const model::ModelConfig& model);

/// A whole model to be written.
struct ModelValues {
  model::ModelConfig config;
  DType dtype = DType::f32;  ///< in which read() fills whole parameters: f32 or f64
  ReadValues read;
};
struct HfExport {
  std::int32_t end_of_document = 0;                ///< the tokenizer's
  std::optional<std::int32_t> end_of_answer = {};  ///< of a chat model: transformers' generate() stops at both
  std::optional<std::int32_t> start_of_text = {};  ///< of a chat model; unset: end_of_document, as in training on texts
  std::optional<std::int32_t> padding = {};        ///< the tokenizer's [PAD]
  std::string task = {};                           ///< of a fine-tuned model
  std::vector<std::string> labels = {};            ///< the names of its classes by number, if it has classes
  Index max_file_bytes = HfFilesWriter::kMaxFileBytes;
};
/// Writes config.json and the tensors (F32) into an existing folder, synced; from_pretrained() loads it. Each parameter
/// is read once. Memory: one parameter and one tensor.
void export_hf(io::Fs& fs, const io::Path& folder, const ModelValues& model, const HfExport& options);

}  // namespace megalith::convert
