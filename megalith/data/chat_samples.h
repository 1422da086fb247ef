#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/chat_template.h"
#include "megalith/data/data_config.h"
#include "megalith/data/sample_documents.h"

namespace megalith::data {

/// Whether a sample has one conversation, or as many as fit.
enum class ChatPacking : bool { off, on };

/// Samples of conversations, of which the tokens of answers are targets, with padding at their ends. Attention is
/// causal and padding is never a target, so padding changes no result. Packed conversations are documents of a sample,
/// without attention between them. They are packed once, by best fit, the longest first (Johnson 1973, "Near-optimal
/// bin packing algorithms"): it is a function of their lengths alone, and takes O(n log n). In a sample they lie in
/// their order, and samples lie in the order of their first conversations. Any thread may read it. Memory: 8 bytes per
/// token.
class ChatSamples {
 public:
  /// A target without a loss.
  static constexpr std::int32_t kNoTarget = -1;

  /// A conversation of more than seq_len + 1 tokens is too long. One that is cut ends there; without an answer before
  /// that place it is dropped.
  ChatSamples(std::string name, std::span<const ChatTokens> conversations, Index seq_len, ChatTooLong too_long,
              ChatPacking packing = ChatPacking::off);

  Index seq_len() const { return seq_len_; }
  Index count() const { return std::ssize(samples_); }
  Index conversations() const { return std::ssize(ends_); }
  Index num_tokens() const { return static_cast<Index>(tokens_.size()); }  ///< without padding
  const std::string& name() const { return name_; }
  std::uint64_t fingerprint() const;  ///< of all tokens and targets, and of how they are packed
  Index cut() const { return cut_; }
  Index dropped() const { return dropped_; }

  /// tokens, targets [S]
  void copy(Index sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;
  void put_documents(Index sample, const SampleDocuments& to) const;

 private:
  void add(const ChatTokens& chat, ChatTooLong too_long);
  void pack();
  /// Tokens of a conversation.
  std::size_t begin_of(std::size_t conversation) const { return conversation == 0 ? 0 : ends_[conversation - 1]; }
  std::size_t size_of(std::size_t conversation) const { return ends_[conversation] - begin_of(conversation); }

  std::string name_;
  Index seq_len_ = 0, cut_ = 0, dropped_ = 0;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<std::size_t> ends_;                  // of each conversation
  std::vector<std::vector<std::size_t>> samples_;  // the conversations of each
};

/// What a run on conversations reads.
struct ChatDataSets {
  ChatSamples train;
  std::optional<ChatSamples> valid;
  DataNotes notes{};
};

/// Opens data.train and data.valid as lines of conversations (for_each_conversation). data.split cuts between
/// conversations. The notes count those that were cut or dropped. Throws InputError with all bad lines of a key, and
/// where no conversation is left; ConfigError as ChatEncoder and for no data.chat_template, to which it adds what
/// check_chat_lines() throws, and for weights.
ChatDataSets open_chat_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer, Index seq_len);
/// The lines of data.train and data.valid where no template is known: throws InputError with all bad ones.
void check_chat_lines(io::Fs& fs, const DataConfig& config);

}  // namespace megalith::data
