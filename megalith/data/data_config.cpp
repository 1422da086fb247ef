#include "megalith/data/data_config.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "megalith/base/checked_growth.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/data/corpus_builder.h"
#include "megalith/data/input_files.h"
#include "megalith/io/file_problems.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

class MemorySink final : public TokenSink {
 public:
  void add(std::span<const std::int32_t> ids) override {
    make_room(tokens, ids.size(), "the ids of the recipe's texts",
              "make a token file of them by `megalith data build`, which is not read into memory");
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  void end_document() override {}
  std::vector<std::int32_t> tokens;
};

/// The prefix of a path that names a token file.
std::optional<io::Path> token_file_prefix(io::Fs& fs, const io::Path& path) {
  if (path.extension() == ".bin" || path.extension() == ".idx") return io::Path(path).replace_extension();
  if (!fs.exists(path) && (fs.exists(idx_path(path)) || fs.exists(bin_path(path)))) return path;
  return std::nullopt;
}

void require_token_file(io::Fs& fs, const io::Path& prefix, std::string_view key) {
  require_file(fs, bin_path(prefix), key);
  if (!fs.exists(idx_path(prefix)))
    throw InputError(str("[", key, "] ", idx_path(prefix).string(), ": is missing beside ",
                         bin_path(prefix).filename().string(), "; copy it too, or build the token file again"));
}

IndexedDataset open_token_file(io::Fs& fs, const io::Path& prefix, std::string_view key) {
  require_token_file(fs, prefix, key);
  return {fs, prefix};
}

/// What a path of a recipe stands for. Of a folder or a pattern: its token files and its texts, in name order.
struct CorpusFiles {
  std::vector<io::Path> prefixes{}, texts{};
};

CorpusFiles corpus_files(io::Fs& fs, const io::Path& path, std::string_view key, const TextReading& reading) {
  if (const std::optional<io::Path> prefix = token_file_prefix(fs, path); prefix && !fs.is_dir(path))
    return {.prefixes = {*prefix}};
  CorpusFiles found;
  const bool is_one_file = fs.exists(path) && !fs.is_dir(path);
  const bool is_pattern = path.string().find_first_of("*?[") != std::string::npos;
  if (!is_one_file && !fs.is_dir(path) && !is_pattern) require_file(fs, path, key);
  const std::vector<io::Path> files = is_one_file ? std::vector<io::Path>{path} : input_files(fs, {path.string()});
  if (!is_one_file && reading.notes != nullptr)
    reading.notes->folders.push_back(str(key, " = ", io::printable(path.string()), ": ", files_text(files)));
  for (const io::Path& file : files) {
    const std::optional<io::Path> prefix = token_file_prefix(fs, file);
    if (!prefix)
      found.texts.push_back(file);
    else if (std::ranges::find(found.prefixes, *prefix) == found.prefixes.end())
      found.prefixes.push_back(*prefix);  // once for .bin and .idx
  }
  if (reading.notes != nullptr) reading.notes->has_members |= any_has_members(fs, found.texts, CorpusFormat::by_name);
  return found;
}

CorpusOptions options_of(const TextReading& reading) {
  CorpusOptions options;
  options.key = reading.key;
  options.threads = reading.threads;
  options.reading.max_line_bytes = reading.max_line;
  return options;
}

TokenSourcePtr open_one(io::Fs& fs, const io::Path& path, const tokenizer::Tokenizer& tokenizer, std::string_view key,
                        const TextReading& reading) {
  const CorpusFiles files = corpus_files(fs, path, key, reading);
  std::vector<TokenSourcePtr> sources;
  for (const io::Path& prefix : files.prefixes)
    sources.push_back(indexed_source(open_token_file(fs, prefix, key), tokenizer.vocab_size()));
  if (!files.texts.empty() || sources.empty()) {
    MemorySink sink;
    tokenize_corpus(fs, files.texts, tokenizer, options_of(reading), sink);
    sources.push_back(memory_source(path.string(), std::move(sink.tokens), tokenizer.vocab_size()));
  }
  return joined_source(std::move(sources));
}

class SentenceSink final : public TokenSink {
 public:
  void add(std::span<const std::int32_t> ids) override {
    make_room(text.tokens, ids.size(), "the ids of the recipe's texts",
              "make a token file of them by `megalith data build --sentences`, which is not read into memory");
    text.tokens.insert(text.tokens.end(), ids.begin(), ids.end());
  }
  void end_sequence() override { text.end_sentence(); }
  void end_document() override { text.end_document(); }
  SentenceText text;
};

/// How a corpus is cut into samples.
struct SampleCut {
  Index seq_len = 0;
  std::optional<std::int32_t> end_of_document = {};
};

/// Adds to the error of a part that is too short: which key to change.
SampleSet part(const TokenSourcePtr& source, TokenRange range, const SampleCut& cut, std::string_view key) {
  try {
    return SampleSet(source, range, cut.seq_len, cut.end_of_document);
  } catch (const InputError& error) {
    throw InputError(str(key, ": ", error.what()));
  }
}

}  // namespace

bool DataConfig::has_valid() const { return !valid.empty() || (!split.empty() && parse_split(split).weights[1] > 0); }

void check(const DataConfig& config, Problems& out) {
  for (const auto& [key, paths] :
       {std::pair{"data.train", &config.train}, {"data.valid", &config.valid}, {"data.test", &config.test}}) {
    out.require(std::ranges::find(*paths, "") == paths->end(), key, "\"\"",
                "must name files; leave the key out for none");
  }
  out.require(!config.key.empty(), "data.key", "\"\"",
              "must name a member of JSON lines or a column; leave it out for \"text\"");
  out.require(config.format == DataFormat::chat || config.chat_template.empty(), "data.chat_template",
              config.chat_template, "needs data.format = chat");
  if (config.split.empty()) return;
  out.require(config.valid.empty(), "data.split", str("\"", config.split, "\""),
              "must not be set together with data.valid; keep one of them");
  try {
    parse_split(config.split);
  } catch (const ConfigError& error) {
    out.add_line(error.what());
  }
}

TokenSourcePtr open_corpus(io::Fs& fs, const std::vector<std::string>& paths, const tokenizer::Tokenizer& tokenizer,
                           std::string_view key, const TextReading& reading) {
  if (paths.empty()) throw ConfigError(str(key, " = []: must name at least one file"));
  std::vector<TokenSourcePtr> sources;
  for (const std::string& path : paths) sources.push_back(open_one(fs, path, tokenizer, key, reading));
  return joined_source(std::move(sources));
}

SentenceSourcePtr open_sentences(io::Fs& fs, const std::vector<std::string>& paths,
                                 const tokenizer::Tokenizer& tokenizer, std::string_view key,
                                 const TextReading& reading) {
  if (paths.empty()) throw ConfigError(str(key, " = []: must name at least one file"));
  std::vector<SentenceSourcePtr> sources;
  for (const std::string& path : paths) {
    const CorpusFiles files = corpus_files(fs, path, key, reading);
    for (const io::Path& prefix : files.prefixes)
      sources.push_back(indexed_sentences(open_token_file(fs, prefix, key), tokenizer.end_of_document()));
    if (files.texts.empty() && !files.prefixes.empty()) continue;
    SentenceSink sink;
    CorpusOptions options = options_of(reading);
    options.sequences = Sequences::sentences;
    options.end_of_document = EndOfDocument::omit;
    tokenize_corpus(fs, files.texts, tokenizer, options, sink);
    sources.push_back(memory_sentences(path, std::move(sink.text)));
  }
  return joined_sentences(std::move(sources));
}

namespace {

struct WeightedPath {
  double weight = 1;
  std::string path;
};

/// "0.3 books.jsonl". Nothing for a plain path, nor for a path of that form that exists as a file.
std::optional<WeightedPath> parse_weighted(io::Fs& fs, const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || fs.exists(text)) return std::nullopt;
  WeightedPath parsed;
  const auto [end, error] = std::from_chars(text.data(), text.data() + space, parsed.weight);
  if (error != std::errc() || end != text.data() + space) return std::nullopt;
  parsed.path = text.substr(text.find_first_not_of(' ', space));
  return parsed;
}

/// The key's paths with their weights; empty if none has a weight.
std::vector<WeightedPath> weighted_paths(io::Fs& fs, const std::vector<std::string>& paths, std::string_view key) {
  std::vector<WeightedPath> weighted;
  std::string plain;
  for (const std::string& path : paths) {
    if (auto parsed = parse_weighted(fs, path))
      weighted.push_back(std::move(*parsed));
    else
      plain = path;
  }
  if (!weighted.empty() && !plain.empty()) {
    throw ConfigError(str(key, " = \"", plain, "\": has no weight; give all paths one (\"0.3 ", plain, "\") or none"));
  }
  return weighted;
}

void refuse_weights(io::Fs& fs, const std::vector<std::string>& valid) {
  if (!weighted_paths(fs, valid, "data.valid").empty())
    throw ConfigError("data.valid: has weights; it is evaluated as it stands, so name files only");
}
void refuse_split_of_weights(const DataConfig& config) {
  if (!config.split.empty())
    throw ConfigError(
        str("data.split = \"", config.split, "\": does not go with a weighted data.train; name data.valid"));
}

/// Returns make(). Errors of it begin with the key.
template <class Make>
auto of_key(std::string_view key, Make&& make) {
  try {
    return make();
  } catch (InputError& error) {
    throw InputError(str(key, ": ", error.what()));
  } catch (ConfigError& error) {
    throw ConfigError(str(key, ": ", error.what()));
  }
}

/// Where samples are cut into documents: a corpus in whose first tokens none ends.
void note_missing_ends(const TrainingSet& set, DataNotes& notes) {
  constexpr Index kMaxTokens = Index{1} << 20;
  if (!set.end_of_document()) return;
  for (const TrainingSet::Corpus& corpus : set.corpora()) {
    const TokenSource& source = corpus.samples.source();
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(std::min(kMaxTokens, source.num_tokens())));
    source.copy(0, tokens);
    if (std::ranges::find(tokens, *set.end_of_document()) != tokens.end()) continue;
    notes.left_out.push_back(str("data.attend_across_documents = false: no document of ", source.name(),
                                 " ends in its ", tokens.size(), " first tokens: none is the token ",
                                 *set.end_of_document(), ", which `data build` appends"));
  }
}

/// Before a file is read: throws one InputError for all paths of data.train and data.valid that name no file or a
/// table.
void require_files(io::Fs& fs, const DataConfig& config) {
  refuse_weights(fs, config.valid);
  io::FileProblems problems;
  const auto require = [&](const io::Path& path, std::string_view key) {
    try {
      const CorpusFiles files = corpus_files(fs, path, key, {});
      for (const io::Path& prefix : files.prefixes) require_token_file(fs, prefix, key);
      for (const io::Path& text : files.texts) refuse_table(text);
    } catch (const InputError& error) {
      problems.add(error.what());
    }
  };
  const std::vector<WeightedPath> weighted = weighted_paths(fs, config.train, "data.train");
  for (const WeightedPath& one : weighted) require(one.path, "data.train");
  if (weighted.empty()) std::ranges::for_each(config.train, [&](const auto& path) { require(path, "data.train"); });
  for (const std::string& path : config.valid) require(path, "data.valid");
  problems.throw_if_any(config.valid.empty() ? "data.train" : "data.train, data.valid");
}

TrainingSet open_blend(io::Fs& fs, const std::vector<WeightedPath>& paths, const tokenizer::Tokenizer& tokenizer,
                       const SampleCut& cut, const TextReading& reading) {
  std::vector<TrainingSet::Corpus> corpora;
  for (const WeightedPath& one : paths) {
    const TokenSourcePtr source = open_corpus(fs, {one.path}, tokenizer, "data.train", reading);
    corpora.push_back({part(source, {0, source->num_tokens()}, cut, "data.train"), one.weight});
  }
  return of_key("data.train", [&] { return TrainingSet(std::move(corpora)); });
}

}  // namespace

DataSets open_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer, Index seq_len,
                   int threads) {
  require_files(fs, config);
  DataNotes notes;
  const TextReading reading{.key = config.key, .max_line = config.max_line, .threads = threads, .notes = &notes};
  SampleCut cut{.seq_len = seq_len};
  if (config.separates_documents()) cut.end_of_document = tokenizer.end_of_document();
  const auto open_valid = [&]() -> std::optional<SampleSet> {
    if (config.valid.empty()) return std::nullopt;
    const TokenSourcePtr valid = open_corpus(fs, config.valid, tokenizer, "data.valid", reading);
    return part(valid, {0, valid->num_tokens()}, cut, "data.valid");
  };
  if (const auto paths = weighted_paths(fs, config.train, "data.train"); !paths.empty()) {
    refuse_split_of_weights(config);
    DataSets sets{.train = open_blend(fs, paths, tokenizer, cut, reading), .valid = open_valid()};
    note_missing_ends(sets.train, notes);
    sets.notes = std::move(notes);
    return sets;
  }
  const TokenSourcePtr source = open_corpus(fs, config.train, tokenizer, "data.train", reading);
  const auto ranges = (config.split.empty() ? Split{} : parse_split(config.split)).ranges(source->num_tokens());
  DataSets sets{.train = TrainingSet({{part(source, ranges[0], cut, "data.train"), 1}}), .valid = open_valid()};
  if (!sets.valid && ranges[1].size() > 0) sets.valid = part(source, ranges[1], cut, "data.valid (from data.split)");
  note_missing_ends(sets.train, notes);
  sets.notes = std::move(notes);
  return sets;
}

BertDataSets open_bert_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer,
                            const BertMaking& making, int threads) {
  require_files(fs, config);
  DataNotes notes;
  const TextReading reading{.key = config.key, .max_line = config.max_line, .threads = threads, .notes = &notes};
  const BertVocabulary vocabulary = bert_vocabulary(tokenizer);
  const auto samples = [&](const SentenceSourcePtr& source, BertSamples::Documents documents, std::string_view key) {
    BertSamples made =
        of_key(key, [&] { return BertSamples(source, documents, vocabulary, making.config, making.seed); });
    if (const Index without = made.documents_without_samples(); without > 0) {
      notes.left_out.push_back(str(key, ": ", without, " of ", made.num_documents(), " documents give no samples",
                                   making.config.is_pair()
                                       ? ": a sample has two segments, and these have one sentence or none"
                                       : ": they have no tokens"));
    }
    return made;
  };
  const auto all_of = [&](const std::vector<std::string>& paths, std::string_view key) {
    const SentenceSourcePtr source = open_sentences(fs, paths, tokenizer, key, reading);
    return samples(source, {0, source->num_documents()}, key);
  };
  const auto open_valid = [&]() -> std::optional<BertSamples> {
    if (config.valid.empty()) return std::nullopt;
    return all_of(config.valid, "data.valid");
  };
  const auto sets_of = [&](std::vector<BertTrainingSet::Corpus> corpora, std::optional<BertSamples> valid) {
    return BertDataSets{.train = of_key("data.train", [&] { return BertTrainingSet(std::move(corpora), making.seed); }),
                        .valid = std::move(valid),
                        .notes = std::move(notes)};
  };
  if (const auto paths = weighted_paths(fs, config.train, "data.train"); !paths.empty()) {
    refuse_split_of_weights(config);
    std::vector<BertTrainingSet::Corpus> corpora;
    for (const WeightedPath& one : paths) corpora.push_back({all_of({one.path}, "data.train"), one.weight});
    std::optional<BertSamples> valid = open_valid();
    return sets_of(std::move(corpora), std::move(valid));
  }
  const SentenceSourcePtr source = open_sentences(fs, config.train, tokenizer, "data.train", reading);
  const auto parts = split_documents(config.split.empty() ? Split{} : parse_split(config.split), *source);
  std::optional<BertSamples> valid = open_valid();
  const bool holds_out = !config.split.empty() && parse_split(config.split).weights[1] > 0;
  if (!valid && holds_out && parts[1].size() == 0) {
    throw InputError(str("data.split = \"", config.split, "\": leaves no document to hold out of the ",
                         source->num_documents(), " of data.train, as it cuts between documents: name data.valid"));
  }
  if (!valid && parts[1].size() > 0) valid = samples(source, parts[1], "data.valid (from data.split)");
  std::vector<BertTrainingSet::Corpus> corpora;
  corpora.push_back({samples(source, parts[0], "data.train"), 1});
  return sets_of(std::move(corpora), std::move(valid));
}

}  // namespace megalith::data
