#include "megalith/convert/hf_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::convert {

using nlohmann::json;

HfConfig::HfConfig(io::Fs& fs, const io::Path& file) : file_(file.string()) {
  const io::MappedFile text = fs.map(file);
  json_ = std::make_shared<const json>(io::read_json(text.text(), {.name = file_}));
  if (!json_->is_object()) throw InputError(str("[", file_, "] must be a JSON object"));
}

HfConfig::HfConfig(std::string file, std::string path, std::shared_ptr<const json> object)
    : file_(std::move(file)), path_(std::move(path)), json_(std::move(object)) {}

const json& HfConfig::value(const char* key) const {
  static const json kNone;
  const auto found = json_->find(key);
  return found == json_->end() ? kNone : *found;
}

void HfConfig::fail(const std::string& key, std::string_view rule) const {
  const auto found = json_->find(key);
  throw InputError(str("[", file_, "] ", path_, io::printable(key), " = ",
                       found == json_->end() ? "nothing" : io::printable(found->dump()), ": ", rule));
}

bool HfConfig::has(const char* key) const { return !value(key).is_null(); }

Index HfConfig::size(const char* key, Index most) const {
  const json& found = value(key);
  if (!found.is_number_integer() || found < 1 || found > most)
    fail(key, str("must be a whole number from 1 to ", most));
  return found.get<Index>();
}

Index HfConfig::size_or(const char* key, Index otherwise) const { return has(key) ? size(key) : otherwise; }

double HfConfig::probability_or(const char* key, double otherwise) const {
  if (!json_->contains(key)) return otherwise;
  const json& found = value(key);
  if (!found.is_number() || found < 0 || found >= 1) fail(key, "must be a number in [0, 1)");
  return found.get<double>();
}

double HfConfig::positive(const char* key) const {
  const json& found = value(key);
  if (!found.is_number() || !(found.get<double>() > 0) || !std::isfinite(found.get<double>()))
    fail(key, "must be a number above 0");
  return found.get<double>();
}

double HfConfig::positive_or(const char* key, double otherwise) const { return has(key) ? positive(key) : otherwise; }

double HfConfig::not_negative_or(const char* key, double otherwise) const {
  if (!has(key)) return otherwise;
  const json& found = value(key);
  if (!found.is_number() || !(found.get<double>() >= 0) || !std::isfinite(found.get<double>()))
    fail(key, "must be a number of at least 0");
  return found.get<double>();
}

bool HfConfig::flag_or(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!value(key).is_boolean()) fail(key, "must be true or false");
  return value(key).get<bool>();
}

std::string HfConfig::text(const char* key) const {
  if (!value(key).is_string()) fail(key, "must be a text");
  return value(key).get<std::string>();
}

std::string HfConfig::text_or(const char* key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

std::vector<std::string> HfConfig::texts(const char* key) const {
  if (!has(key)) return {};
  const json& found = value(key);
  if (!found.is_array() || !std::ranges::all_of(found, [](const json& one) { return one.is_string(); }))
    fail(key, "must be a list of texts");
  return found.get<std::vector<std::string>>();
}

std::vector<Index> HfConfig::counts(const char* key) const {
  if (!has(key)) return {};
  const json& found = value(key);
  if (!found.is_array() || !std::ranges::all_of(found, [](const json& one) { return one.is_number_unsigned(); }))
    fail(key, "must be a list of whole numbers from 0 on");
  return found.get<std::vector<Index>>();
}

std::vector<std::string> HfConfig::labels() const {
  constexpr const char *kLabels = "id2label", *kNumber = "num_labels";
  constexpr Index kMaxLabels = 1024;
  if (!has(kLabels))
    return std::vector<std::string>(static_cast<std::size_t>(has(kNumber) ? size(kNumber, kMaxLabels) : 2));
  const json& found = value(kLabels);
  constexpr std::string_view kRule = "must be an object with a text for each number from 0 on";
  if (!found.is_object() || found.empty() || std::ssize(found) > kMaxLabels) fail(kLabels, kRule);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto one = found.find(std::to_string(i));
    if (one == found.end() || !one->is_string()) fail(kLabels, kRule);
    names.push_back(one->get<std::string>());
  }
  return names;
}

HfConfig HfConfig::object(const char* key) const {
  if (!value(key).is_object()) fail(key, "must be an object");
  return {file_, str(path_, key, '.'), std::shared_ptr<const json>(json_, &value(key))};
}

void HfConfig::expect(const char* key, const json& wanted, std::string_view rule) const {
  if (json_->contains(key) && value(key) != wanted) fail(key, rule);
}

void HfConfig::expect_or_null(const char* key, const json& wanted, std::string_view rule) const {
  if (has(key)) expect(key, wanted, rule);
}

void HfConfig::expect_only(std::span<const std::string_view> keys, std::string_view rule) const {
  for (const auto& [key, found] : json_->items()) {
    if (!found.is_null() && std::ranges::find(keys, key) == keys.end()) fail(key, rule);
  }
}

bool HfConfig::equals(const HfConfig& other) const { return *json_ == *other.json_; }

}  // namespace megalith::convert
