#include "apps/finetune/run_scores.h"

#include <cstring>
#include <span>
#include <string_view>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/checksum.h"
#include "megalith/io/json_reader.h"

namespace megalith::apps {
namespace {

std::string checksum_of(std::string_view bytes) { return io::checksum(std::as_bytes(std::span(bytes))).hex(); }

/// Throws InputError if the file is not the one that was written.
std::vector<float> read_numbers(io::Fs& fs, const io::Path& file, std::size_t count, const std::string& checksum) {
  const io::MappedFile mapped = fs.map(file);
  const std::string_view bytes = mapped.text();
  if (bytes.size() != count * sizeof(float) || checksum_of(bytes) != checksum)
    throw InputError(str("[", file.string(), "] is not what was written: another size or checksum"));
  std::vector<float> numbers(count);
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

std::optional<RunScore> read_score(io::Fs& fs, const ScorePlace& place, const tasks::TaskSet& set, Numbers numbers) {
  const std::string file = place.json().string();
  const nlohmann::ordered_json json = io::read_json(fs.map(place.json()).text(), {.name = file});
  const auto text = [&](const char* member) {
    const auto found = json.is_object() ? json.find(member) : json.end();
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (text("samples") != hex64(set.fingerprint())) return std::nullopt;
  RunScore score{.score = file_score_of(json, file), .digest = text("digest"), .inference = text("inference")};
  if (numbers == Numbers::left_out) return score;
  const std::string checksum = text("logits_xxh3_128");
  if (checksum.empty()) return std::nullopt;
  score.numbers = read_numbers(fs, place.logits(), static_cast<std::size_t>(set.count() * set.numbers()), checksum);
  return score;
}

}  // namespace

void write_run_score(io::Fs& fs, const ScorePlace& place, const tasks::TaskSet& set, const RunScore& score) {
  nlohmann::ordered_json json = json_of(set.config().task, score.score);
  json["samples"] = hex64(set.fingerprint());
  json["digest"] = score.digest;
  json["inference"] = score.inference;
  fs.make_dir(place.folder);
  if (!score.numbers.empty()) {
    const std::string_view bytes(reinterpret_cast<const char*>(score.numbers.data()),
                                 score.numbers.size() * sizeof(float));
    io::publish_file(fs, place.logits(), bytes);
    json["logits_xxh3_128"] = checksum_of(bytes);
  }
  io::publish_file(fs, place.json(), json.dump(2) + '\n');
}

std::optional<RunScore> read_run_score(io::Fs& fs, const ScorePlace& place, const tasks::TaskSet& set,
                                       Numbers numbers) {
  if (!fs.exists(place.json())) return std::nullopt;
  try {
    return read_score(fs, place, set, numbers);
  } catch (const InputError& error) {
    log::warning(str(error.what(), "; the score is computed again"));
    return std::nullopt;
  }
}

}  // namespace megalith::apps
