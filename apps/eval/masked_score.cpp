#include "apps/eval/masked_score.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text_lines.h"
#include "megalith/eval/inference_model.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::apps {
namespace {

constexpr const char* kForm = R"({"ids": [101, 7592, 103, 102], "types": [0, 0, 0, 0], "targets": [-1, -1, 2088, -1]})";

/// A list of a line: its member, and the numbers that it may hold.
struct ListRule {
  const char* key;
  std::int64_t least, end;
  std::string_view of;  ///< what the numbers are
};

/// Reads the members of a line. Adds each broken rule to the problems.
class SampleReader {
 public:
  SampleReader(const std::string& file, const model::ModelConfig& model, io::FileProblems& problems)
      : file_(file), model_(model), problems_(problems) {}

  /// Nothing where a rule is broken.
  std::optional<eval::MaskedSample> read(std::string_view text, std::size_t line) {
    line_ = line;
    is_good_ = true;
    nlohmann::json object;
    try {
      object = io::read_json(text, {.name = file_, .first_line = line});
    } catch (const InputError& error) {
      problems_.add(error.what());
      return std::nullopt;
    }
    if (!object.is_object()) {
      refuse("", str("must be an object as ", kForm));
      return std::nullopt;
    }
    eval::MaskedSample sample{.ids = list(object, {"ids", 0, model_.vocab_size, "ids of the vocabulary"}),
                              .types = list(object, {"types", 0, model_.token_types, "types of the model"}),
                              .targets = list(object, {"targets", -1, model_.vocab_size, "-1 or ids"})};
    if (is_good_) check_sizes(sample);
    return is_good_ ? std::optional(std::move(sample)) : std::nullopt;
  }

 private:
  void refuse(std::string_view what, std::string_view rule) {
    is_good_ = false;
    problems_.add(str("[", file_, "] line ", line_, what.empty() ? ": " : ", ", what, what.empty() ? "" : ": ", rule));
  }

  std::vector<std::int32_t> list(const nlohmann::json& object, const ListRule& rule) {
    std::vector<std::int32_t> numbers;
    const auto member = object.find(rule.key);
    if (member == object.end()) {
      refuse(rule.key, str("is missing; a line is ", kForm));
      return numbers;
    }
    if (!member->is_array()) {
      refuse(rule.key, str("must be a list; a line is ", kForm));
      return numbers;
    }
    for (const nlohmann::json& number : *member) {
      const bool is_in = number.is_number_integer() &&
                         (!number.is_number_unsigned() || number.get<std::uint64_t>() < std::uint64_t{1} << 62) &&
                         number.get<std::int64_t>() >= rule.least && number.get<std::int64_t>() < rule.end;
      if (!is_in) {
        const std::string shown = number.is_structured() ? "a list or an object" : io::printable(number.dump());
        refuse(str(rule.key, '[', numbers.size(), "] = ", shown),
               str("must be a whole number from ", rule.least, " to ", rule.end - 1, ", as ", rule.of, " are"));
        return {};
      }
      numbers.push_back(static_cast<std::int32_t>(number.get<std::int64_t>()));
    }
    return numbers;
  }

  void check_sizes(const eval::MaskedSample& sample) {
    const std::size_t size = sample.ids.size();
    if (size < 1 || static_cast<Index>(size) > model_.seq_len)
      refuse("ids", str("has ", size, " numbers: must have 1 to ", model_.seq_len,
                        ", the model's seq_len; cut the sample, padding is not needed"));
    const auto same = [&](const char* key, const std::vector<std::int32_t>& list) {
      if (list.size() != size)
        refuse(key, str("has ", list.size(), " numbers: must have ", size, ", one for each of ids"));
    };
    same("types", sample.types);
    same("targets", sample.targets);
  }

  const std::string& file_;
  const model::ModelConfig& model_;
  io::FileProblems& problems_;
  std::size_t line_ = 0;
  bool is_good_ = true;
};

/// Samples that are scored together.
constexpr std::size_t kSamplesAtOnce = 4096;
constexpr Index kSampleTokensAtOnce = Index{1} << 20;

/// A number for each place, null without a target.
nlohmann::json places_of(const eval::MaskedSample& sample, const std::vector<double>& losses) {
  auto places = nlohmann::json::array();
  std::size_t row = 0;
  for (const std::int32_t target : sample.targets) {
    if (target < 0)
      places.push_back(nullptr);
    else
      places.push_back(-losses[row++]);
  }
  return places;
}

}  // namespace

void MaskedScorer::read(const Take& take) const {
  io::FileProblems problems;
  SampleReader reader(name_, model_, problems);
  std::size_t samples = 0;
  for_each_line(file_.text(), [&](std::string_view object, std::size_t line) {
    if (object.find_first_not_of(" \t\r") == std::string_view::npos) return;
    ++samples;
    if (std::optional<eval::MaskedSample> sample = reader.read(object, line)) take(std::move(*sample));
  });
  if (samples == 0) problems.add(str("[", name_, "] holds no samples: must have lines as ", kForm));
  problems.throw_if_any(name_);
}

void MaskedScorer::check() const {
  read([](const eval::MaskedSample&) {});
}

eval::PassCounts MaskedScorer::counts() const {
  eval::PassCounts counts;
  read([&](const eval::MaskedSample& sample) { ++counts[eval::MaskedSamples({&sample, 1}, model_.seq_len).shape(0)]; });
  return counts;
}

std::vector<eval::AskedResult> MaskedScorer::asked() const {
  std::vector<eval::AskedResult> asked = {{nn::Result::losses}};
  if (model_.bert.is_pair()) asked.push_back({nn::Result::class_logits, 2});
  return asked;
}

void MaskedScorer::print(eval::InferenceModel& model, int rank) const {
  std::vector<eval::MaskedSample> samples;
  std::vector<std::array<double, 2>> orders;
  Index tokens = 0;
  bool first = true;
  const auto flush = [&] {
    std::vector<eval::SampleNumbers> numbers(rank == 0 ? samples.size() : 0);
    model.infer(eval::MaskedSamples(samples, model_.seq_len),
                [&](Index sample, const eval::SampleNumbers& of) { numbers[static_cast<std::size_t>(sample)] = of; });
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      std::printf("%s%s", first ? "" : ",", places_of(samples[i], numbers[i].of(nn::Result::losses)).dump().c_str());
      if (model_.bert.is_pair()) orders.push_back(eval::order_log_probabilities(numbers[i]));
      first = false;
    }
    samples.clear();
    tokens = 0;
  };
  if (rank == 0) std::fputs("{\"logprobs\":[", stdout);
  read([&](eval::MaskedSample sample) {
    tokens += std::ssize(sample.ids);
    samples.push_back(std::move(sample));
    if (samples.size() == kSamplesAtOnce || tokens >= kSampleTokensAtOnce) flush();
  });
  flush();
  if (rank != 0) return;
  std::fputs("]", stdout);
  if (model_.bert.is_pair()) {
    std::fputs(",\"order\":[", stdout);
    for (std::size_t i = 0; i < orders.size(); ++i)
      std::printf("%s%s", i == 0 ? "" : ",", nlohmann::json(orders[i]).dump().c_str());
    std::fputs("]", stdout);
  }
  std::puts("}");
}

}  // namespace megalith::apps
