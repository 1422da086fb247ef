#include "megalith/convert/hf_model.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/box.h"
#include "megalith/convert/hf_family.h"
#include "megalith/convert/hf_weights.h"
#include "megalith/io/save_protocol.h"
#include "megalith/ops/init.h"

namespace megalith::convert {
namespace {

/// The task of a fine-tuned model, in config.json.
constexpr const char* kTaskKey = "finetuning_task";

/// "gpt2 or llama".
std::string known(std::string_view HfFamily::*field) {
  std::string text;
  const auto families = hf_families();
  for (std::size_t i = 0; i < families.size(); ++i)
    text += str(i == 0 ? "" : i + 1 == families.size() ? " or " : ", ", families[i]->*field);
  return text;
}

const HfFamily& family_of(const HfConfig& config) {
  constexpr std::string_view kOthers = ": other families are not built yet";
  if (config.has("model_type")) {
    const std::string type = config.text("model_type");
    for (const HfFamily* family : hf_families()) {
      if (family->model_type == type) return *family;
    }
    config.fail("model_type", str("must be ", known(&HfFamily::model_type), kOthers));
  }
  const std::vector<std::string> architectures = config.texts("architectures");
  for (const std::string& one : architectures) {
    for (const HfFamily* family : hf_families()) {
      const std::span<const std::string_view> others = family->other_architectures;
      if (family->architecture == one || std::ranges::find(others, one) != others.end()) return *family;
    }
  }
  if (!architectures.empty()) config.fail("architectures", str("must be ", known(&HfFamily::architecture), kOthers));
  if (config.has("n_embd")) return kHfGpt2;  // the first configs of GPT-2 name no family
  config.fail("model_type", str("must be ", known(&HfFamily::model_type), kOthers));
}

void write_config(io::Fs& fs, const io::Path& folder, const HfFamily& family, const model::ModelConfig& model,
                  const HfExport& options) {
  nlohmann::ordered_json config = {{"architectures", {architecture_of(family, model)}},
                                   {"model_type", family.model_type}};
  config.update(family.write_config(model));
  config["bos_token_id"] = options.start_of_text.value_or(options.end_of_document);
  config["eos_token_id"] = options.end_of_document;
  if (options.end_of_answer && *options.end_of_answer != options.end_of_document)
    config["eos_token_id"] = {options.end_of_document, *options.end_of_answer};
  if (options.padding) config["pad_token_id"] = *options.padding;
  config["torch_dtype"] = "float32";
  if (!options.task.empty()) config[kTaskKey] = options.task;
  for (std::size_t i = 0; i < options.labels.size(); ++i) {
    config["id2label"][std::to_string(i)] = options.labels[i];
    config["label2id"][options.labels[i]] = i;
  }
  io::write_file(fs, folder / "config.json", config.dump(2) + "\n");
}

}  // namespace

bool is_hf_folder(io::Fs& fs, const io::Path& folder) {
  return fs.exists(folder / "config.json") && !fs.exists(folder / io::kManifestName) &&
         !fs.is_dir(folder / "checkpoints");
}

std::string_view architecture_of(const HfFamily& family, const model::ModelConfig& model) {
  return family.written_architecture == nullptr ? family.architecture : family.written_architecture(model);
}

std::string_view model_type_of(const HfModel& model) { return model.family->model_type; }

HfModel read_hf_config(io::Fs& fs, const io::Path& folder) {
  const HfConfig config(fs, folder / "config.json");
  const HfFamily& family = family_of(config);
  HfModel model{&family, family.read_config(config)};
  if (!model.config.task) return model;
  model.task = config.text_or(kTaskKey, "");
  if (model.config.task->form == nn::TaskForm::classes) model.labels = config.labels();
  return model;
}

HfReader::HfReader(io::Fs& fs, const io::Path& folder, const HfModel& model, std::uint64_t seed)
    : model_(model), name_(folder.string()), seed_(seed), weights_(std::make_unique<HfWeights>(fs, folder, model)) {}
HfReader::~HfReader() = default;

void HfReader::check_tensors() const { weights_->check(); }

std::string HfReader::warning() const {
  const std::string heads = weights_->lacking_heads(), left_out = weights_->left_out_parts();
  if (heads.empty() && left_out.empty()) return {};
  return str(name_, heads.empty() ? "" : str(" has no ", heads, ": made from seed ", seed_),
             heads.empty() || left_out.empty() ? "" : ";",
             left_out.empty() ? "" : str(" has a ", left_out, ", which its class leaves out"));
}

const std::map<std::string, ParamSpec, std::less<>>& HfReader::params() {
  if (params_.empty()) {
    for (ParamSpec& param : learned_params(model_.config)) params_.emplace(param.slice.name, std::move(param));
  }
  return params_;
}

bool HfReader::has(const TensorSlice& slice) {
  const auto found = params().find(slice.name);
  return found != params().end() && found->second.slice.global == slice.global && !weights_->lacks(slice.name);
}

void HfReader::initialise(const TensorSlice& slice, const Tensor& values) {
  const ParamSpec& param = params().at(slice.name);
  Exec host;
  ops::initialise(host, {slice, param.init, param.init_std}, values, seed_);
}

/// Fills a whole parameter of ours.
void HfReader::read_whole(const TensorSlice& slice, const Tensor& values) const {
  for (const HfTensor& tensor : weights_->tensors_of(slice.name, slice.global)) {
    const HfFileTensor& found = weights_->at(tensor);
    copy_to_ours(tensor, found.dtype, found.bytes, values);
  }
}

void HfReader::read(const TensorSlice& slice, const Tensor& values) {
  if (weights_->lacks(slice.name)) return initialise(slice, values);
  if (slice.local == slice.global) return read_whole(slice, values);
  const checkpoint::Box whole{{}, slice.global}, part = checkpoint::box_of(slice);
  const std::vector<HfTensor> tensors = weights_->tensors_of(slice.name, slice.global);
  if (tensors.size() == 1 && tensors.front().is_same_as(slice.global)) {  // the large tables, without a copy
    const HfFileTensor& found = weights_->at(tensors.front());
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
    read_whole(TensorSlice::whole(slice.name, slice.global), whole_);
  }
  checkpoint::copy_common(whole, static_cast<const std::byte*>(whole_.raw()), part,
                          static_cast<std::byte*>(values.raw()), size_of(values.dtype()));
}

const HfFamily& hf_family_for(const model::ModelConfig& model) {
  std::string misfits;
  for (const HfFamily* family : hf_families()) {
    if (family->is_bert != model.is_bert()) continue;
    const std::string misfit = family->misfit(model);
    if (misfit.empty()) return *family;
    misfits += str(misfits.empty() ? "" : ", ", family->model_type, " has ", misfit);
  }
  throw InputError(str("[export-hf] the checkpoint's model is of no family that can be written: ", misfits));
}

void export_hf(io::Fs& fs, const io::Path& folder, const ModelValues& model, const HfExport& options) {
  const HfFamily& family = hf_family_for(model.config);
  write_config(fs, folder, family, model.config, options);
  const std::vector<ParamSpec> params = learned_params(model.config);
  std::vector<HfFilesWriter::Entry> entries;
  const auto add = [&](const HfTensor& tensor) {
    entries.push_back({family.full_name(tensor.name, family.prefix), tensor.shape});
  };
  Index most = 0;
  for (const ParamSpec& param : params) {
    std::ranges::for_each(whole_tensors_of(family.tensors_of, model.config, param.slice.name, param.slice.global), add);
    most = std::max(most, bytes_of(param.slice.global, model.dtype));
  }
  std::ranges::for_each(family.zeros(model.config), add);
  HfFilesWriter writer(fs, folder, std::move(entries), options.max_file_bytes);
  const Buffer memory(most);
  std::vector<float> theirs;
  for (const ParamSpec& spec : params) {
    const TensorSlice& param = spec.slice;
    const Tensor ours = memory.view(param.global, model.dtype);
    model.read(param, ours);
    for (const HfTensor& tensor : whole_tensors_of(family.tensors_of, model.config, param.name, param.global)) {
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
