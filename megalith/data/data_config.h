#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/problems.h"
#include "megalith/data/bert_training_set.h"
#include "megalith/data/corpus_reader.h"
#include "megalith/data/samples.h"
#include "megalith/data/sentence_source.h"
#include "megalith/data/token_source.h"
#include "megalith/data/training_set.h"
#include "megalith/tokenizer/tokenizer.h"

namespace megalith::data {

/// text: documents, joined to one stream of tokens. chat: lines of conversations (open_chat_data()).
enum class DataFormat : std::uint8_t { text, chat };
inline constexpr std::array<std::string_view, 2> kDataFormatNames = {"text", "chat"};
/// What becomes of a conversation that is longer than a sample.
enum class ChatTooLong : std::uint8_t { cut, drop };
inline constexpr std::array<std::string_view, 2> kChatTooLongNames = {"cut", "drop"};

/// Section [data] of a recipe.
struct DataConfig {
  std::string tokenizer = "gpt2";  ///< see tokenizer_names()
  std::string vocab_dir{};         ///< folder of the vocabulary; empty with gpt2: the one that ships
  /// Text, JSON lines, Parquet or prefixes of .bin/.idx, read one after the other. Or "WEIGHT PATH" each: blended.
  std::vector<std::string> train{};
  std::vector<std::string> valid{};  ///< the same without weights; empty: a part of train, if `split` is given
  std::vector<std::string> test{};   ///< of fine-tuning tasks: scored once, at the end of `finetune`
  std::string key = "text";          ///< member of JSON lines, or column of Parquet, that holds the text of both
  Index max_line = kDefaultMaxLine;  ///< bytes: see CorpusReader::Options
  std::string split{};               ///< see parse_split(); empty: all of train is for training
  DataFormat format = DataFormat::text;
  std::string chat_template{};  ///< of kChatTemplateNames; empty: that of the folder vocab_dir
  ChatTooLong chat_too_long = ChatTooLong::cut;
  bool chat_packing = true;             ///< several conversations in a sample, without attention between them
  bool attend_across_documents = true;  ///< of texts: to the documents before one's own in a sample

  /// Whether there is held-out data, if the files are long enough: `valid`, or a second part of `split`. The config
  /// must pass check().
  bool has_valid() const;
  /// Whether samples have documents that do not attend to each other.
  bool separates_documents() const { return format == DataFormat::chat ? chat_packing : !attend_across_documents; }
};

/// Reports every broken rule that can be seen without reading files.
void check(const DataConfig& config, Problems& out);

/// Facts about the files of a run, for the user who starts it.
struct DataNotes {
  std::vector<std::string> folders{};   ///< what the folders and patterns stand for
  bool has_members = false;             ///< whether a file is JSON lines or Parquet, where data.key names a member
  std::vector<std::string> left_out{};  ///< documents and rows without samples, conversations that were cut
  std::vector<std::string> packed{};    ///< how conversations fill samples
};

/// How texts are read.
struct TextReading {
  std::string key = "text";  ///< member of JSON lines, or column of Parquet, that holds the text
  Index max_line = kDefaultMaxLine;
  int threads = 1;
  DataNotes* notes = nullptr;
};

/// One corpus from the files of a recipe key, joined in their order. A path is
/// - a file of text, JSON lines or Parquet. It is tokenised now and kept in memory (4 bytes per token). Each document
///   ends with the tokenizer's end of document.
/// - PREFIX, PREFIX.bin or PREFIX.idx of a token file, which is mapped.
/// `key` ("data.train") names the paths in errors. Throws InputError, naming similar files where one is missing.
TokenSourcePtr open_corpus(io::Fs& fs, const std::vector<std::string>& paths, const tokenizer::Tokenizer& tokenizer,
                           std::string_view key, const TextReading& reading = {});

/// The same as documents of sentences, for masked language models: texts are cut into sentences when they are read, and
/// token files are those of `data build --sentences`.
SentenceSourcePtr open_sentences(io::Fs& fs, const std::vector<std::string>& paths,
                                 const tokenizer::Tokenizer& tokenizer, std::string_view key,
                                 const TextReading& reading = {});

/// What a training run reads.
struct DataSets {
  TrainingSet train;
  std::optional<SampleSet> valid;
  DataNotes notes{};
};

/// Opens train and valid with samples of seq_len. Throws ConfigError, InputError, IoError.
DataSets open_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer, Index seq_len,
                   int threads = 1);

/// What a run of a masked language model reads.
struct BertDataSets {
  BertTrainingSet train;
  std::optional<BertSamples> valid;
  DataNotes notes{};
};

/// How samples are made: of which vocabulary, sizes and random numbers.
struct BertMaking {
  BertSampleConfig config;
  std::uint64_t seed = 0;
};

/// The same as open_data(), of documents of sentences (open_sentences). `split` cuts between documents. Throws
/// ConfigError also if the vocabulary lacks a token that samples need.
BertDataSets open_bert_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer,
                            const BertMaking& making, int threads = 1);

}  // namespace megalith::data
