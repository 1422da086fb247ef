#include "megalith/data/chat_samples.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "megalith/base/checked_growth.h"
#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"
#include "megalith/data/chat_file.h"
#include "megalith/data/input_files.h"
#include "megalith/data/samples.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

/// Reads the files of a recipe, and keeps all that is wrong with them. Without an encoder lines are only checked.
class ChatReading {
 public:
  ChatReading(io::Fs& fs, const ChatEncoder* encoder, const DataConfig& config, DataNotes& notes)
      : fs_(fs), encoder_(encoder), config_(config), notes_(notes) {}

  std::vector<ChatTokens> read(const std::vector<std::string>& paths, std::string_view key) {
    if (paths.empty()) throw ConfigError(str(key, " = []: must name at least one file"));
    keys_ += str(keys_.empty() ? "" : ", ", key);
    std::vector<ChatTokens> chats;
    for (const std::string& path : paths) {
      refuse_weight(path, key);
      try {
        for (const io::Path& file : files_of(path, key)) {
          for_each_conversation(fs_, file, static_cast<std::size_t>(config_.max_line), problems_,
                                [&](const Conversation& conversation) {
                                  if (encoder_ != nullptr) chats.push_back(encoder_->encode(conversation));
                                });
        }
      } catch (const InputError& error) {  // a file that is missing or cannot be unpacked
        problems_.add(error.what());
      }
    }
    return chats;
  }
  /// Throws InputError with the problems of all keys that were read.
  void throw_if_any() const { problems_.throw_if_any(keys_); }

 private:
  void refuse_weight(const std::string& path, std::string_view key) const {
    const bool is_weighted = path.find(' ') != std::string::npos && !fs_.exists(path) &&
                             path.find_first_not_of("0123456789.") == path.find(' ');
    if (is_weighted)
      throw ConfigError(str(key, " = \"", path, "\": weights do not go with data.format = chat; name files only"));
  }
  std::vector<io::Path> files_of(const std::string& path, std::string_view key) {
    if (fs_.is_dir(path) || path.find_first_of("*?[") != std::string::npos) {
      std::vector<io::Path> files = input_files(fs_, {path});
      notes_.folders.push_back(str(key, " = ", io::printable(path), ": ", files_text(files)));
      return files;
    }
    require_file(fs_, path, key);
    return {path};
  }

  io::Fs& fs_;
  const ChatEncoder* encoder_;
  const DataConfig& config_;
  DataNotes& notes_;
  io::FileProblems problems_;
  std::string keys_;
};

ChatSamples chat_samples(const std::vector<std::string>& paths, std::span<const ChatTokens> chats, std::string_view key,
                         const DataConfig& config, Index seq_len, DataNotes& notes) {
  std::string name;
  for (const std::string& path : paths) name += str(name.empty() ? "" : ", ", path);
  ChatSamples samples(name, chats, seq_len, config.chat_too_long,
                      config.chat_packing ? ChatPacking::on : ChatPacking::off);
  if (const Index long_ones = samples.cut() + samples.dropped(); long_ones > 0) {
    notes.left_out.push_back(
        str(key, ": ", long_ones, " of ", chats.size(), " conversations have over model.seq_len + 1 = ", seq_len + 1,
            " tokens: ", samples.cut(), " were cut at their end, ", samples.dropped(), " were dropped",
            config.chat_too_long == ChatTooLong::cut ? ", as no answer begins before that" : ""));
  }
  if (samples.count() < samples.conversations()) {
    notes.packed.push_back(str(key, ": ", samples.conversations(), " conversations are packed into ", samples.count(),
                               " samples of model.seq_len = ", seq_len, " tokens, of which ",
                               100 * samples.num_tokens() / (samples.count() * seq_len), " % are not padding"));
  }
  if (samples.count() == 0) {
    throw InputError(str(key, ": no conversation is left of ", chats.size(), ": ",
                         chats.empty() ? "must have at least one line"
                                       : str("all are longer than model.seq_len = ", seq_len, "; raise it")));
  }
  return samples;
}

}  // namespace

ChatSamples::ChatSamples(std::string name, std::span<const ChatTokens> conversations, Index seq_len,
                         ChatTooLong too_long, ChatPacking packing)
    : name_(std::move(name)), seq_len_(seq_len) {
  for (const ChatTokens& chat : conversations) add(chat, too_long);
  if (packing == ChatPacking::on) {
    pack();
  } else {
    for (std::size_t i = 0; i < ends_.size(); ++i) samples_.push_back({i});
  }
}

void ChatSamples::add(const ChatTokens& chat, ChatTooLong too_long) {
  const auto most = static_cast<std::size_t>(seq_len_) + 1;
  const std::size_t size = std::min(chat.ids.size(), most);
  const bool is_long = chat.ids.size() > most;
  const bool has_answer = std::any_of(chat.loss.begin() + 1, chat.loss.begin() + static_cast<std::ptrdiff_t>(size),
                                      [](std::uint8_t loss) { return loss != 0; });
  if (is_long && (too_long == ChatTooLong::drop || !has_answer)) {
    ++dropped_;
    return;
  }
  cut_ += is_long ? 1 : 0;
  make_room(tokens_, size, "the ids of the recipe's conversations", "train on fewer files");
  make_room(targets_, size, "the targets of the recipe's conversations", "train on fewer files");
  for (std::size_t i = 0; i + 1 < size; ++i) {
    tokens_.push_back(chat.ids[i]);
    targets_.push_back(chat.loss[i + 1] != 0 ? chat.ids[i + 1] : kNoTarget);
  }
  ends_.push_back(tokens_.size());
}

void ChatSamples::pack() {
  std::vector<std::size_t> longest_first(ends_.size());
  std::iota(longest_first.begin(), longest_first.end(), std::size_t{0});
  std::ranges::stable_sort(longest_first, std::greater(), [&](std::size_t i) { return size_of(i); });
  std::multimap<std::size_t, std::size_t> with_room;  // samples by what is left of them
  for (const std::size_t conversation : longest_first) {
    const std::size_t size = size_of(conversation);
    std::size_t left = static_cast<std::size_t>(seq_len_), sample = samples_.size();
    if (const auto best = with_room.lower_bound(size); best != with_room.end()) {
      std::tie(left, sample) = *best;
      with_room.erase(best);
    } else {
      samples_.emplace_back();
    }
    samples_[sample].push_back(conversation);
    with_room.emplace(left - size, sample);
  }
  for (std::vector<std::size_t>& sample : samples_) std::ranges::sort(sample);
  std::ranges::sort(samples_, {}, [](const std::vector<std::size_t>& sample) { return sample.front(); });
}

std::uint64_t ChatSamples::fingerprint() const {
  std::uint64_t hash = fnv1a("chat");
  for (const std::size_t end : ends_) hash = hash_combine(hash, end);
  for (const std::vector<std::int32_t>* ids : {&tokens_, &targets_})
    hash = fnv1a({reinterpret_cast<const char*>(ids->data()), ids->size() * sizeof(std::int32_t)}, hash);
  if (count() == conversations()) return hash;  // as without packing
  for (const std::vector<std::size_t>& sample : samples_) {
    hash = hash_combine(hash, sample.size());
    for (const std::size_t conversation : sample) hash = hash_combine(hash, conversation);
  }
  return hash;
}

void ChatSamples::copy(Index sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const {
  std::size_t to = 0;
  for (const std::size_t conversation : samples_[static_cast<std::size_t>(sample)]) {
    const std::size_t begin = begin_of(conversation), size = size_of(conversation);
    std::ranges::copy(std::span(tokens_).subspan(begin, size), tokens.subspan(to).begin());
    std::ranges::copy(std::span(targets_).subspan(begin, size), targets.subspan(to).begin());
    to += size;
  }
  std::ranges::fill(tokens.subspan(to), 0);
  std::ranges::fill(targets.subspan(to), kNoTarget);
}

void ChatSamples::put_documents(Index sample, const SampleDocuments& to) const {
  std::size_t first = 0;
  for (const std::size_t conversation : samples_[static_cast<std::size_t>(sample)]) {
    to.put(first, first + size_of(conversation));
    first += size_of(conversation);
  }
  to.put_padding(first);
}

void check_chat_lines(io::Fs& fs, const DataConfig& config) {
  DataNotes notes;
  ChatReading reading(fs, nullptr, config, notes);
  reading.read(config.train, "data.train");
  if (!config.valid.empty()) reading.read(config.valid, "data.valid");
  reading.throw_if_any();
}

ChatDataSets open_chat_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer,
                            Index seq_len) {
  std::optional<ChatEncoder> encoder;
  try {
    const std::optional<ChatTemplate> named = enumerator_of<ChatTemplate>(kChatTemplateNames, config.chat_template);
    if (!named) throw ConfigError("data.chat_template is not set: must be chatml, llama3 or plain");
    encoder.emplace(*named, tokenizer);
  } catch (const ConfigError& error) {
    try {
      check_chat_lines(fs, config);
    } catch (const Error& lines) {
      throw ConfigError(str(error.what(), '\n', lines.what()));
    }
    throw;
  }
  DataNotes notes{.has_members = true};
  ChatReading reading(fs, &*encoder, config, notes);
  const std::vector<ChatTokens> all = reading.read(config.train, "data.train");
  std::vector<ChatTokens> held_out;
  if (!config.valid.empty()) held_out = reading.read(config.valid, "data.valid");
  reading.throw_if_any();
  const auto parts =
      (config.split.empty() ? Split{} : parse_split(config.split)).ranges(static_cast<Index>(all.size()));
  const auto part = [&](std::size_t i) {
    return std::span(all).subspan(static_cast<std::size_t>(parts[i].begin), static_cast<std::size_t>(parts[i].size()));
  };
  ChatSamples train = chat_samples(config.train, part(0), "data.train", config, seq_len, notes);
  std::optional<ChatSamples> valid;
  if (!config.valid.empty()) {
    valid = chat_samples(config.valid, held_out, "data.valid", config, seq_len, notes);
  } else if (parts[1].size() > 0) {
    valid = chat_samples(config.train, part(1), "data.valid (from data.split)", config, seq_len, notes);
  }
  return {.train = std::move(train), .valid = std::move(valid), .notes = std::move(notes)};
}

}  // namespace megalith::data
