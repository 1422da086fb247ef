#include "megalith/convert/hf_model.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/box.h"
#include "megalith/convert/hf_family.h"
#include "megalith/io/reader.h"
#include "megalith/model/chunk.h"

namespace megalith::convert {
/// The tensors of a folder under the names of its family.
class FolderTensors {
 public:
  FolderTensors(io::Fs& fs, const io::Path& folder, const HfFamily& family) : files_(fs, folder) {
    const bool has_prefix = std::ranges::any_of(
        files_.tensors(), [&](const auto& tensor) { return tensor.first.starts_with(family.prefix); });
    if (has_prefix) prefix_ = family.prefix;
  }

  /// In the files.
  std::string full_name(const HfTensor& tensor) const {
    return tensor.name == kHfHead ? tensor.name : prefix_ + tensor.name;
  }
  const HfFileTensor& at(const HfTensor& tensor) const {
    const std::string name = full_name(tensor);
    const HfFileTensor* const found = files_.find(name);
    if (found == nullptr) throw InputError(str("[", files_.where(), "] tensor \"", name, "\" is missing"));
    if (found->shape != tensor.shape) {
      throw InputError(str("[", found->file, "] tensor \"", name, "\" shape = ", found->shape, ": must be ",
                           tensor.shape, " by config.json"));
    }
    const bool is_float = found->dtype == DType::f64 || found->dtype == DType::f32 || found->dtype == DType::bf16 ||
                          found->dtype == DType::f16;
    if (!is_float) {
      throw InputError(str("[", found->file, "] tensor \"", name, "\" dtype = ", name_of(found->dtype),
                           ": must be a floating-point type"));
    }
    return *found;
  }
  const HfFiles& files() const { return files_; }
  /// Whether one tensor has all experts of a layer.
  bool is_fused() const {
    return std::ranges::any_of(files_.tensors(), [](const auto& one) { return one.first.ends_with(kFusedExperts); });
  }

 private:
  HfFiles files_;
  std::string prefix_;
};

namespace {

/// "gpt2 or llama".
std::string known(std::string_view HfFamily::*field) {
  std::string text;
  const auto families = hf_families();
  for (std::size_t i = 0; i < families.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == families.size() ? " or " : ", ", families[i]->*field);
  return text;
}

const HfFamily* find_family(std::string_view HfFamily::*field, std::string_view wanted) {
  for (const HfFamily* family : hf_families()) {
    if (family->*field == wanted) return family;
  }
  return nullptr;
}

const HfFamily& family_of(const HfConfig& config) {
  constexpr std::string_view kOthers = ": other families are not built yet";
  if (config.has("model_type")) {
    if (const HfFamily* family = find_family(&HfFamily::model_type, config.text("model_type"))) return *family;
    config.fail("model_type", str("must be ", known(&HfFamily::model_type), kOthers));
  }
  const std::vector<std::string> architectures = config.texts("architectures");
  for (const std::string& one : architectures) {
    if (const HfFamily* family = find_family(&HfFamily::architecture, one)) return *family;
  }
  if (!architectures.empty()) config.fail("architectures", str("must be ", known(&HfFamily::architecture), kOthers));
  if (config.has("n_embd")) return kHfGpt2;  // the first configs of GPT-2 name no family
  config.fail("model_type", str("must be ", known(&HfFamily::model_type), kOthers));
}

/// A table as doubles.
std::vector<double> values_of(const HfTensor& tensor, const HfFileTensor& theirs) {
  std::vector<double> values(static_cast<std::size_t>(tensor.shape.numel()));
  copy_to_ours(same(tensor.name, tensor.shape), theirs.dtype, theirs.bytes,
               Tensor(values.data(), tensor.shape, DType::f64));
  return values;
}

/// Both tables may be large: compared without a copy where the types are the same.
bool have_same_values(const HfTensor& tensor, const HfFileTensor& a, const HfFileTensor& b) {
  return (a.dtype == b.dtype && std::ranges::equal(a.bytes, b.bytes)) || values_of(tensor, a) == values_of(tensor, b);
}

/// A head in the files of a model whose head is tied must be the token table.
void check_tied_head(const HfModel& hf, const FolderTensors& source) {
  const Shape shape = {hf.config.vocab_size, hf.config.hidden_size};
  const HfTensor head = same(std::string(kHfHead), shape);
  const HfTensor table = hf.family->tensors_of(hf.config, model::kTokenTable, shape).front();
  const HfFileTensor* const found = source.files().find(kHfHead);
  if (found == nullptr) return;
  if (found->shape != shape || !have_same_values(head, source.at(head), source.at(table)))
    throw InputError(
        str("[", found->file, "] tensor \"", kHfHead, "\": must equal ", table.name, ", to which it is tied"));
}

/// Tensors that no parameter of ours has taken.
void check_rest(const HfModel& hf, const FolderTensors& source, std::set<std::string>& used) {
  if (hf.config.tying == model::Tying::tied) {
    check_tied_head(hf, source);
    used.emplace(kHfHead);
  }
  for (const HfTensor& zero : hf.family->zeros(hf.config)) {
    const std::string name = source.full_name(zero);
    if (source.files().find(name) == nullptr) continue;
    const HfFileTensor& found = source.at(zero);
    if (std::ranges::any_of(values_of(zero, found), [](double value) { return value != 0; })) {
      throw InputError(str("[", found.file, "] tensor \"", name,
                           "\": must be zeros: with this config.json only q, k and v can have biases here"));
    }
    used.insert(name);
  }
  for (const auto& [name, found] : source.files().tensors()) {
    if (!used.contains(name) && !hf.family->is_ignored(name)) {
      throw InputError(str("[", found.file, "] tensor \"", io::printable(name), "\": the ", hf.family->name,
                           " of config.json has none"));
    }
  }
}

using TensorsOf = decltype(HfFamily::tensors_of);

/// The tensors of a whole parameter of ours.
std::vector<HfTensor> tensors_of(TensorsOf of_family, const model::ModelConfig& model, const std::string& name,
                                 const Shape& shape) {
  std::vector<HfTensor> tensors = of_family(model, name, shape);
  Index elements = 0;
  for (const HfTensor& tensor : tensors) elements += tensor.shape.numel();
  if (elements != shape.numel())
    throw InternalError(str("[convert] parameter ", name, ": ", elements, " of ", shape.numel(), " elements"));
  return tensors;
}

/// As the folder's files hold experts.
TensorsOf layout_of(const HfModel& hf, const FolderTensors& source) {
  const bool is_fused = hf.family->fused_tensors_of != nullptr && source.is_fused();
  return is_fused ? hf.family->fused_tensors_of : hf.family->tensors_of;
}

/// Fills a whole parameter of ours.
void copy_whole(const HfModel& hf, const FolderTensors& source, const std::string& name, const Tensor& ours) {
  for (const HfTensor& tensor : tensors_of(layout_of(hf, source), hf.config, name, ours.shape())) {
    const HfFileTensor& found = source.at(tensor);
    copy_to_ours(tensor, found.dtype, found.bytes, ours);
  }
}

/// The parameters of a model that are learned, whole. Those that a rule updates are the state of a training.
std::vector<TensorSlice> learned(const model::ModelConfig& model) {
  std::vector<TensorSlice> slices;
  for (ParamSpec& spec : model::declare_whole_model(model))
    if (spec.update == Update::by_gradient) slices.push_back(std::move(spec.slice));
  return slices;
}

std::string file_name(const HfFamily& family, const HfTensor& tensor) {
  return tensor.name == kHfHead ? tensor.name : str(family.prefix, tensor.name);
}

void write_config(io::Fs& fs, const io::Path& folder, const HfFamily& family, const model::ModelConfig& model,
                  std::int32_t end_of_document) {
  nlohmann::ordered_json config = {{"architectures", {family.architecture}}, {"model_type", family.model_type}};
  config.update(family.write_config(model));
  config["bos_token_id"] = config["eos_token_id"] = end_of_document;
  config["torch_dtype"] = "float32";
  io::write_file(fs, folder / "config.json", config.dump(2) + "\n");
}

}  // namespace

std::string_view architecture_of(const HfFamily& family) { return family.architecture; }

HfModel read_hf_config(io::Fs& fs, const io::Path& folder) {
  const HfConfig config(fs, folder / "config.json");
  const HfFamily& family = family_of(config);
  return {&family, family.read_config(config)};
}

class HfReader::Source : public FolderTensors {
 public:
  using FolderTensors::FolderTensors;
};

HfReader::HfReader(io::Fs& fs, const io::Path& folder, const HfModel& model)
    : model_(model), source_(std::make_unique<Source>(fs, folder, *model.family)) {}
HfReader::~HfReader() = default;

void HfReader::read(const TensorSlice& slice, const Tensor& values) {
  if (slice.local == slice.global) return copy_whole(model_, *source_, slice.name, values);
  const checkpoint::Box whole{{}, slice.global}, part = checkpoint::box_of(slice);
  const std::vector<HfTensor> tensors =
      tensors_of(layout_of(model_, *source_), model_.config, slice.name, slice.global);
  if (tensors.size() == 1 && tensors.front().is_same_as(slice.global)) {  // the large tables, without a copy
    const HfFileTensor& found = source_->at(tensors.front());
    const checkpoint::Runs runs(part, whole);
    const Tensor flat = values.reshaped({values.numel()});
    const auto element = static_cast<std::size_t>(size_of(found.dtype)), size = static_cast<std::size_t>(runs.length());
    for (Index run = 0; run < runs.count(); ++run)
      copy_to_ours(same(slice.name, {runs.length()}), found.dtype,
                   found.bytes.subspan(static_cast<std::size_t>(runs.start(run)) * element, size * element),
                   flat.rows(run * runs.length(), runs.length()));
    return;
  }
  if (whole_name_ != slice.name || whole_.dtype() != values.dtype()) {
    const Index bytes = bytes_of(slice.global, values.dtype());
    if (whole_memory_.bytes() < bytes) whole_memory_ = Buffer(bytes);
    whole_ = whole_memory_.view(slice.global, values.dtype());
    whole_name_ = slice.name;
    copy_whole(model_, *source_, slice.name, whole_);
  }
  checkpoint::copy_common(whole, static_cast<const std::byte*>(whole_.raw()), part,
                          static_cast<std::byte*>(values.raw()), size_of(values.dtype()));
}

void HfReader::check_tensors() const {
  std::set<std::string> used;
  for (const TensorSlice& slice : learned(model_.config)) {
    for (const HfTensor& tensor : tensors_of(layout_of(model_, *source_), model_.config, slice.name, slice.global)) {
      source_->at(tensor);
      used.insert(source_->full_name(tensor));
    }
  }
  check_rest(model_, *source_, used);
}

const HfFamily& hf_family_for(const model::ModelConfig& model) {
  if (model.is_bert())
    throw InputError("[export-hf] model.family = bert: masked language models cannot be written yet, only decoders");
  std::string misfits;
  for (const HfFamily* family : hf_families()) {
    const std::string misfit = family->misfit(model);
    if (misfit.empty()) return *family;
    misfits += str(misfits.empty() ? "" : ", ", family->model_type, " has ", misfit);
  }
  throw InputError(str("[export-hf] the checkpoint's model is of no family that can be written: ", misfits));
}

void export_hf(io::Fs& fs, const io::Path& folder, const ModelValues& model, const HfExport& options) {
  const HfFamily& family = hf_family_for(model.config);
  write_config(fs, folder, family, model.config, options.end_of_document);
  const std::vector<TensorSlice> params = learned(model.config);
  std::vector<HfFilesWriter::Entry> entries;
  const auto add = [&](const HfTensor& tensor) { entries.push_back({file_name(family, tensor), tensor.shape}); };
  Index most = 0;
  for (const TensorSlice& param : params) {
    std::ranges::for_each(tensors_of(family.tensors_of, model.config, param.name, param.global), add);
    most = std::max(most, bytes_of(param.global, model.dtype));
  }
  std::ranges::for_each(family.zeros(model.config), add);
  HfFilesWriter writer(fs, folder, std::move(entries), options.max_file_bytes);
  const Buffer memory(most);
  std::vector<float> theirs;
  for (const TensorSlice& param : params) {
    const Tensor ours = memory.view(param.global, model.dtype);
    model.read(param, ours);
    for (const HfTensor& tensor : tensors_of(family.tensors_of, model.config, param.name, param.global)) {
      if (ours.dtype() == DType::f32 && tensor.is_same_as(ours.shape())) {  // the large tables, without a copy
        writer.write(ours);
        continue;
      }
      theirs.resize(static_cast<std::size_t>(tensor.shape.numel()));
      copy_to_theirs(tensor, ours, theirs);
      writer.write(Tensor(theirs.data(), tensor.shape, DType::f32));
    }
  }
  for (const HfTensor& zero : family.zeros(model.config)) {
    theirs.assign(static_cast<std::size_t>(zero.shape.numel()), 0.0F);
    writer.write(Tensor(theirs.data(), zero.shape, DType::f32));
  }
  writer.finish();
}

}  // namespace megalith::convert
