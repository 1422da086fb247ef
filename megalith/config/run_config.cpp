#include "megalith/config/run_config.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/other_names.h"
#include "megalith/config/toml_text.h"
#include "megalith/io/reader.h"

namespace megalith::config {
namespace {

std::string as_text(const toml::node& node) { return str(toml::node_view<const toml::node>(node)); }

template <class T>
std::optional<T> convert(const toml::node& node) {
  if constexpr (std::is_same_v<T, Index>) {
    if (const auto* integer = node.as_integer()) return integer->get();
  } else if constexpr (std::is_same_v<T, double>) {
    if (node.is_number()) return node.value<double>();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (const auto* boolean = node.as_boolean()) return boolean->get();
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (const auto* text = node.as_string()) return text->get();
  }
  return std::nullopt;
}

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class T>
constexpr std::string_view kind_of() {
  if constexpr (std::is_same_v<T, Index>)
    return "an integer";
  else if constexpr (std::is_same_v<T, double>)
    return "a number";
  else if constexpr (std::is_same_v<T, bool>)
    return "true or false";
  else if constexpr (std::is_same_v<T, std::string>)
    return "a text in quotes";
  else if constexpr (std::is_same_v<T, std::vector<Index>>)
    return "a list of integers";
  else
    return "a text in quotes or a list of them";
}

template <class T>
std::optional<T> convert_any(const toml::node& node) {
  if constexpr (IsVector<T>::value) {
    using Element = typename T::value_type;
    T values;
    if (const auto* array = node.as_array()) {
      for (const toml::node& element : *array) {
        const std::optional<Element> value = convert<Element>(element);
        if (!value) return std::nullopt;
        values.push_back(*value);
      }
      return values;
    }
    if constexpr (std::is_same_v<Element, std::string>) {
      if (const auto one = convert<std::string>(node)) return T{*one};
    }
    return std::nullopt;
  } else {
    return convert<T>(node);
  }
}

void assign(const Field& field, const toml::node& node, Problems& problems) {
  std::visit(
      [&]<class T>(std::optional<T>* target) {
        std::optional<T> value = convert_any<T>(node);
        if (value) {
          *target = std::move(value);
        } else {
          problems.add(field.key, as_text(node), str("must be ", kind_of<T>()));
        }
      },
      field.value);
}

/// The rule that an unknown key breaks, with what was meant.
std::string no_such_key(std::string_view key) {
  const MeantKey meant = meant_key(key);
  std::string text = "no such key";
  if (!meant.key.empty()) text += str("; did you mean ", meant.key, "?");
  if (!meant.how.empty()) text += str(meant.key.empty() ? ". " : " ", meant.how);
  return text;
}

void set_key(const std::vector<Field>& all, const std::string& key, const toml::node& node, Problems& problems) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Field& f) { return f.key == key; });
  if (found != all.end()) return assign(*found, node, problems);
  problems.add(key, as_text(node), no_such_key(key));
}

void read_table(const toml::table& root, const std::vector<Field>& all, Problems& problems) {
  for (const auto& [section, node] : root) {
    const auto* table = node.as_table();
    if (table == nullptr) {
      set_key(all, std::string(section.str()), node, problems);
      continue;
    }
    for (const auto& [name, value] : *table) {
      set_key(all, std::string(section.str()) + "." + std::string(name.str()), value, problems);
    }
  }
}

/// The value of a setting: TOML where it parses as that, else plain text ("--set data.train=corpus.txt").
void read_setting(const std::string& setting, const std::vector<Field>& all, Problems& problems) {
  const std::size_t equals = setting.find('=');
  const std::string key = setting.substr(0, equals);
  const bool has_section = key.find('.') != std::string::npos;
  if (equals == std::string::npos || (!has_section && meant_key(key).is_none())) {
    problems.add_line(str("--set ", setting, ": must be section.key=value"));
    return;
  }
  const std::string value = setting.substr(equals + 1);
  const auto field = std::find_if(all.begin(), all.end(), [&](const Field& f) { return f.key == key; });
  const bool wants_text =
      field != all.end() && (std::holds_alternative<std::optional<std::string>*>(field->value) ||
                             std::holds_alternative<std::optional<std::vector<std::string>>*>(field->value));
  if (wants_text && !value.starts_with('"') && !value.starts_with('\'') && !value.starts_with('[')) {
    set_key(all, key, toml::value<std::string>(value), problems);
    return;
  }
  if (toml_too_deep(value)) return problems.add(key, io::printable(value), str("nested deeper than ", kMaxTomlDepth));
  try {
    set_key(all, key, *read_toml("value = " + value).get("value"), problems);
  } catch (const TomlError&) {
    const bool wants_list =
        field != all.end() && std::visit([]<class T>(std::optional<T>*) { return IsVector<T>::value; }, field->value);
    if (wants_list && value.starts_with('['))
      return problems.add(key, value,
                          "is no list: it takes [\"a\", \"b\"] or [1, 2], and quotes around all of it in a shell");
    set_key(all, key, toml::value<std::string>(value), problems);
  }
}

std::string quoted(const std::string& text) { return str(toml::value<std::string>(text)); }

template <class T>
std::string print(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, double>) {
    const std::string text = exact(value);
    return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
  } else if constexpr (std::is_same_v<T, std::string>) {
    return quoted(value);
  } else if constexpr (IsVector<T>::value) {
    std::string list;
    for (const auto& element : value) list += (list.empty() ? "" : ", ") + print(element);
    return "[" + list + "]";
  } else {
    return std::to_string(value);
  }
}

}  // namespace

MeantKey meant_key(std::string_view key) {
  if (const OtherName* const other = find_other_name(key)) return {other->key, other->how};
  RunConfig any;
  std::vector<std::string_view> names;
  for (const Field& field : fields(any)) names.push_back(field.key);
  const auto only = [&](auto&& fits) {
    std::string_view found;
    for (const std::string_view name : names) {
      if (!fits(name)) continue;
      if (!found.empty()) return std::string_view();
      found = name;
    }
    return found;
  };
  const std::string spelled = as_key(key);
  if (const auto longer = only([&](auto name) { return name.starts_with(spelled); }); !longer.empty()) return {longer};
  if (const auto shorter = only([&](auto name) { return spelled.starts_with(str(name, "_")); }); !shorter.empty())
    return {shorter};
  const std::string last = spelled.substr(spelled.rfind('.') + 1);
  if (const auto same = only([&](auto name) { return name.ends_with(str(".", last)); }); !same.empty()) return {same};
  return {nearest(spelled, names)};
}

std::vector<Field> fields(RunConfig& c) {
  return {{"model.preset", &c.model.preset},
          {"model.family", &c.model.family},
          {"model.num_layers", &c.model.num_layers},
          {"model.hidden_size", &c.model.hidden_size},
          {"model.num_heads", &c.model.num_heads},
          {"model.ffn_hidden_size", &c.model.ffn_hidden_size},
          {"model.seq_len", &c.model.seq_len},
          {"model.vocab_size", &c.model.vocab_size},
          {"model.padded_vocab_size", &c.model.padded_vocab_size},
          {"model.dropout", &c.model.dropout},
          {"model.attention_dropout", &c.model.attention_dropout},
          {"model.embedding_dropout", &c.model.embedding_dropout},
          {"parallel.ranks", &c.parallel.ranks},
          {"parallel.tp", &c.parallel.tp},
          {"parallel.cp", &c.parallel.cp},
          {"parallel.pp", &c.parallel.pp},
          {"parallel.ep", &c.parallel.ep},
          {"parallel.etp", &c.parallel.etp},
          {"parallel.chunks", &c.parallel.chunks},
          {"parallel.stage_layers", &c.parallel.stage_layers},
          {"parallel.group_size", &c.parallel.group_size},
          {"parallel.order", &c.parallel.order},
          {"parallel.tp_overlap", &c.parallel.tp_overlap},
          {"parallel.transfers", &c.parallel.transfers},
          {"parallel.sequence_parallel", &c.parallel.sequence_parallel},
          {"parallel.timeout_s", &c.parallel.timeout_s},
          {"train.steps", &c.train.steps},
          {"train.init", &c.train.init},
          {"train.global_batch", &c.train.global_batch},
          {"train.micro_batch", &c.train.micro_batch},
          {"train.seed", &c.train.seed},
          {"train.precision", &c.train.precision},
          {"train.loss_scale", &c.train.loss_scale},
          {"train.loss_scale_min", &c.train.loss_scale_min},
          {"train.loss_scale_interval", &c.train.loss_scale_interval},
          {"train.deterministic", &c.train.deterministic},
          {"train.gemm", &c.train.gemm},
          {"train.eval_interval", &c.train.eval_interval},
          {"train.eval_batches", &c.train.eval_batches},
          {"optimizer.lr", &c.optimizer.lr},
          {"optimizer.min_lr", &c.optimizer.min_lr},
          {"optimizer.warmup_steps", &c.optimizer.warmup_steps},
          {"optimizer.decay", &c.optimizer.decay},
          {"optimizer.decay_steps", &c.optimizer.decay_steps},
          {"optimizer.weight_decay", &c.optimizer.weight_decay},
          {"optimizer.beta1", &c.optimizer.beta1},
          {"optimizer.beta2", &c.optimizer.beta2},
          {"optimizer.eps", &c.optimizer.eps},
          {"optimizer.clip", &c.optimizer.clip},
          {"optimizer.distributed", &c.optimizer.distributed},
          {"data.tokenizer", &c.data.tokenizer},
          {"data.vocab_dir", &c.data.vocab_dir},
          {"data.train", &c.data.train},
          {"data.valid", &c.data.valid},
          {"data.split", &c.data.split},
          {"checkpoint.dir", &c.checkpoint.dir},
          {"checkpoint.interval", &c.checkpoint.interval},
          {"checkpoint.every_s", &c.checkpoint.every_s},
          {"checkpoint.keep", &c.checkpoint.keep},
          {"checkpoint.on_corrupt", &c.checkpoint.on_corrupt},
          {"log.interval", &c.log.interval},
          {"log.tensorboard", &c.log.tensorboard},
          {"graphs.mode", &c.graphs.mode},
          {"graphs.scopes", &c.graphs.scopes},
          {"graphs.per", &c.graphs.per},
          {"graphs.warmup_steps", &c.graphs.warmup_steps},
          {"graphs.optimizer", &c.graphs.optimizer},
          {"graphs.check", &c.graphs.check},
          {"recompute.mode", &c.recompute.mode},
          {"recompute.method", &c.recompute.method},
          {"recompute.layers", &c.recompute.layers},
          {"recompute.modules", &c.recompute.modules},
          {"device.type", &c.device.type},
          {"device.ranks_per_node", &c.device.ranks_per_node},
          {"device.threads", &c.device.threads}};
}

RunConfig parse_recipe(std::string_view toml, std::string source, std::span<const std::string> settings) {
  RunConfig config;
  config.source = std::move(source);
  const std::vector<Field> all = fields(config);
  Problems problems;
  try {
    read_table(read_toml(toml), all, problems);
  } catch (const TomlError& error) {
    throw ConfigError(str(config.source, ":", error.line, ":", error.column, ": ", error.rule, " (recipes are TOML)"));
  }
  for (const std::string& setting : settings) read_setting(setting, all, problems);
  problems.throw_if_any(config.source);
  return config;
}

std::string to_toml(RunConfig config) {
  std::string text;
  std::string_view section;
  for (const Field& field : fields(config)) {
    std::visit(
        [&]<class T>(const std::optional<T>* value) {
          if (!*value) return;
          const std::string_view name = field.key.substr(0, field.key.find('.'));
          if (name != section) text += str(text.empty() ? "" : "\n", "[", name, "]\n");
          section = name;
          text += str(field.key.substr(name.size() + 1), " = ", print(**value), "\n");
        },
        field.value);
  }
  return text;
}

}  // namespace megalith::config
