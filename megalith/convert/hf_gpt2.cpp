#include "megalith/convert/hf_gpt2.h"

#include <algorithm>
#include <cstring>
#include <set>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/safetensors.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::convert {
namespace {

using nlohmann::json;

constexpr double kEpsilon = 1e-5;

/// How a tensor of theirs lies compared with ours.
enum class Layout { same, transposed, fused_weight, fused_bias };

struct Mapping {
  std::string theirs;
  Layout layout = Layout::same;
};

/// Ours below "layers.N." and theirs below "h.N.".
struct LayerMapping {
  std::string_view ours;
  std::string_view theirs;
  Layout layout;
};
constexpr LayerMapping kLayer[] = {
    {"norm1.weight", "ln_1.weight", Layout::same},
    {"norm1.bias", "ln_1.bias", Layout::same},
    {"attention.qkv.weight", "attn.c_attn.weight", Layout::fused_weight},
    {"attention.qkv.bias", "attn.c_attn.bias", Layout::fused_bias},
    {"attention.out.weight", "attn.c_proj.weight", Layout::transposed},
    {"attention.out.bias", "attn.c_proj.bias", Layout::same},
    {"norm2.weight", "ln_2.weight", Layout::same},
    {"norm2.bias", "ln_2.bias", Layout::same},
    {"mlp.up.weight", "mlp.c_fc.weight", Layout::transposed},
    {"mlp.up.bias", "mlp.c_fc.bias", Layout::same},
    {"mlp.down.weight", "mlp.c_proj.weight", Layout::transposed},
    {"mlp.down.bias", "mlp.c_proj.bias", Layout::same},
};

/// Their name, without the "transformer." that some files put in front.
Mapping mapping_of(std::string_view ours) {
  if (ours == "embedding.token.weight") return {"wte.weight"};
  if (ours == "embedding.position.weight") return {"wpe.weight"};
  if (ours == "final_norm.weight") return {"ln_f.weight"};
  if (ours == "final_norm.bias") return {"ln_f.bias"};
  constexpr std::string_view kLayers = "layers.";
  const std::size_t dot = ours.find('.', kLayers.size());
  if (ours.starts_with(kLayers) && dot != std::string_view::npos) {
    const std::string_view number = ours.substr(kLayers.size(), dot - kLayers.size()), rest = ours.substr(dot + 1);
    for (const LayerMapping& one : kLayer) {
      if (one.ours == rest) return {str("h.", number, '.', one.theirs), one.layout};
    }
  }
  throw InternalError(str("[hf_gpt2] parameter ", ours, " has no place in a GPT2LMHeadModel"));
}

/// The place in theirs of every element of ours, in our order: visit(place).
template <class Visit>
void for_each_place(Layout layout, const Shape& ours, Index num_heads, const Visit& visit) {
  const Index rows = ours[0], columns = ours.rank() > 1 ? ours[1] : 1;
  const Index hidden = rows / 3, head_dim = std::max<Index>(1, hidden / num_heads);
  for (Index row = 0; row < rows; ++row) {
    // Row of ours -> column of theirs: head, part (query, key, value), dimension -> part, head, dimension.
    const Index head = row / (3 * head_dim), part = row / head_dim % 3, dimension = row % head_dim;
    const Index unfused = part * hidden + head * head_dim + dimension;
    for (Index column = 0; column < columns; ++column) {
      switch (layout) {
        case Layout::same:
          visit(row * columns + column);
          break;
        case Layout::transposed:
          visit(column * rows + row);
          break;
        case Layout::fused_weight:
          visit(column * rows + unfused);
          break;
        case Layout::fused_bias:
          visit(unfused);
          break;
      }
    }
  }
}

Shape their_shape(Layout layout, const Shape& ours) {
  const bool turned = layout == Layout::transposed || layout == Layout::fused_weight;
  return turned ? Shape{ours[1], ours[0]} : ours;
}

/// Any floating-point tensor of a file as doubles.
std::vector<double> values_of(const checkpoint::TensorInfo& info, std::span<const std::byte> file,
                              const std::string& where) {
  const auto count = static_cast<std::size_t>(info.shape.numel());
  std::vector<double> values(count);
  const std::byte* data = file.data() + info.begin;
  const auto convert = [&]<class T>(T) {
    for (std::size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, data + i * sizeof(T), sizeof(T));
      if constexpr (sizeof(T) == 2)
        values[i] = static_cast<float>(value);
      else
        values[i] = value;
    }
  };
  switch (info.dtype) {
    case DType::f64:
      convert(double{});
      break;
    case DType::f32:
      convert(float{});
      break;
    case DType::bf16:
      convert(bfloat16{});
      break;
    case DType::f16:
      convert(float16{});
      break;
    default:
      throw InputError(str("[", where, "] tensor \"", io::printable(info.name), "\" dtype = ", name_of(info.dtype),
                           ": must be a floating-point type"));
  }
  return values;
}

class ConfigReader {
 public:
  ConfigReader(io::Fs& fs, const io::Path& file) : file_(file.string()) {
    const io::MappedFile text = fs.map(file);
    json_ = io::read_json(text.text(), {.name = file_});
    if (!json_.is_object()) throw InputError(str("[", file_, "] must be a JSON object"));
  }
  Index size(const char* key, Index most = Index{1} << 24) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_number_integer() || *found < 1 || *found > most)
      fail(key, str("must be a whole number from 1 to ", most));
    return found->get<Index>();
  }
  Index size_or(const char* key, Index otherwise) const {
    return json_.contains(key) && !json_.at(key).is_null() ? size(key) : otherwise;
  }
  double probability(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) return 0.1;  // the library's default
    if (!found->is_number() || *found < 0 || *found >= 1) fail(key, "must be a number in [0, 1)");
    return found->get<double>();
  }
  /// A key that may be missing, and must have this value where it is not.
  void expect(const char* key, const json& wanted, const char* rule) const {
    const auto found = json_.find(key);
    if (found != json_.end() && *found != wanted) fail(key, rule);
  }

 private:
  [[noreturn]] void fail(const char* key, std::string_view rule) const {
    const auto found = json_.find(key);
    throw InputError(
        str("[", file_, "] ", key, " = ", found == json_.end() ? "nothing" : io::printable(found->dump()), ": ", rule));
  }
  std::string file_;
  json json_;
};

const checkpoint::TensorInfo* find_either(const checkpoint::SafeTensorsHeader& header, const std::string& name) {
  const checkpoint::TensorInfo* info = header.find("transformer." + name);
  return info != nullptr ? info : header.find(name);
}

/// Tensors that a file may hold beside the parameters: masks, and the output layer, which is the token table.
bool is_known_extra(std::string_view name) {
  return name == "lm_head.weight" || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

}  // namespace

model::ModelConfig read_hf_gpt2_config(io::Fs& fs, const io::Path& folder) {
  const ConfigReader config(fs, folder / "config.json");
  config.expect("model_type", "gpt2", "must be gpt2: other families are not built yet");
  config.expect("activation_function", "gelu_new", "must be gelu_new, GPT-2's own");
  config.expect("layer_norm_epsilon", kEpsilon, "must be 1e-05, GPT-2's own");
  config.expect("tie_word_embeddings", true, "must be true: the output layer is the token table");
  config.expect("scale_attn_weights", true, "must be true");
  config.expect("scale_attn_by_inverse_layer_idx", false, "must be false");
  config.expect("add_cross_attention", false, "must be false");
  model::ModelConfig model;
  model.num_layers = config.size("n_layer", model::kMaxLayers);
  model.hidden_size = config.size("n_embd");
  model.num_heads = config.size("n_head");
  model.ffn_hidden_size = config.size_or("n_inner", 4 * model.hidden_size);
  model.seq_len = config.size("n_positions");
  model.vocab_size = config.size("vocab_size");
  model.dropout = config.probability("resid_pdrop");
  model.attention_dropout = config.probability("attn_pdrop");
  model.embedding_dropout = config.probability("embd_pdrop");
  return model;
}

void import_hf_gpt2(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model, ParamBuffer& params) {
  const io::Path path = folder / "model.safetensors";
  const std::string where = path.string();
  const io::MappedFile file = fs.map(path);
  const checkpoint::SafeTensorsHeader header = checkpoint::parse_safetensors(file.bytes(), where);
  std::set<std::string> used;
  for (Param& param : params.params()) {
    const Mapping mapping = mapping_of(param.name());
    const Tensor ours = param.without_padding(param.master);
    const checkpoint::TensorInfo* info = find_either(header, mapping.theirs);
    if (info == nullptr) throw InputError(str("[", where, "] tensor \"", mapping.theirs, "\" is missing"));
    used.insert(info->name);
    const Shape wanted = their_shape(mapping.layout, ours.shape());
    if (info->shape != wanted) {
      throw InputError(str("[", where, "] tensor \"", info->name, "\" shape = ", info->shape, ": must be ", wanted,
                           " by config.json"));
    }
    const std::vector<double> theirs = values_of(*info, file.bytes(), where);
    dispatch_wide(ours.dtype(), "import_hf_gpt2", [&]<class T>() {
      T* out = ours.data<T>();
      for_each_place(mapping.layout, ours.shape(), model.num_heads,
                     [&](Index place) { *out++ = static_cast<T>(theirs[static_cast<std::size_t>(place)]); });
    });
  }
  for (const checkpoint::TensorInfo& info : header.tensors) {
    if (!used.contains(info.name) && !is_known_extra(info.name))
      throw InputError(str("[", where, "] tensor \"", io::printable(info.name), "\": a GPT-2 of config.json has none"));
  }
  if (const checkpoint::TensorInfo* output = header.find("lm_head.weight")) {
    const checkpoint::TensorInfo* table = find_either(header, "wte.weight");
    if (output->shape != table->shape ||
        values_of(*output, file.bytes(), where) != values_of(*table, file.bytes(), where))
      throw InputError(str("[", where, "] tensor \"lm_head.weight\": must equal wte.weight, to which it is tied"));
  }
}

void export_hf_gpt2(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model, const ParamBuffer& params,
                    std::int32_t end_of_document) {
  const nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                         {"model_type", "gpt2"},
                                         {"activation_function", "gelu_new"},
                                         {"vocab_size", model.vocab_size},
                                         {"n_positions", model.seq_len},
                                         {"n_ctx", model.seq_len},
                                         {"n_embd", model.hidden_size},
                                         {"n_layer", model.num_layers},
                                         {"n_head", model.num_heads},
                                         {"n_inner", model.ffn_hidden_size},
                                         {"layer_norm_epsilon", kEpsilon},
                                         {"initializer_range", 0.02},
                                         {"resid_pdrop", model.dropout},
                                         {"attn_pdrop", model.attention_dropout},
                                         {"embd_pdrop", model.embedding_dropout},
                                         {"bos_token_id", end_of_document},
                                         {"eos_token_id", end_of_document},
                                         {"tie_word_embeddings", true},
                                         {"torch_dtype", "float32"}};
  io::write_file(fs, folder / "config.json", config.dump(2) + "\n");

  std::vector<checkpoint::SafeTensorsWriter::Entry> entries;
  for (const Param& param : params.params()) {
    const Mapping mapping = mapping_of(param.name());
    const Tensor ours = param.without_padding(param.master);
    entries.push_back({"transformer." + mapping.theirs, DType::f32, their_shape(mapping.layout, ours.shape())});
  }
  checkpoint::SafeTensorsWriter writer(fs, folder / "model.safetensors", entries, {{"format", "pt"}});
  std::vector<float> theirs;
  for (const Param& param : params.params()) {
    const Mapping mapping = mapping_of(param.name());
    const Tensor ours = param.without_padding(param.master);
    if (mapping.layout == Layout::same && ours.dtype() == DType::f32) {  // the large tables, without a copy
      writer.write(ours);
      continue;
    }
    theirs.resize(static_cast<std::size_t>(ours.numel()));
    dispatch_wide(ours.dtype(), "export_hf_gpt2", [&]<class T>() {
      const T* in = ours.data<T>();
      for_each_place(mapping.layout, ours.shape(), model.num_heads,
                     [&](Index place) { theirs[static_cast<std::size_t>(place)] = static_cast<float>(*in++); });
    });
    writer.write(Tensor(theirs.data(), their_shape(mapping.layout, ours.shape()), DType::f32));
  }
  writer.finish();
}

}  // namespace megalith::convert
