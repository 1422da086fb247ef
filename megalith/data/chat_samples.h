#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/base/types.h"
#include "megalith/data/chat_template.h"
#include "megalith/data/data_config.h"

namespace megalith::data {

/// One conversation is one sample: its first tokens, of which those of answers are targets, and padding behind them.
/// Attention is causal and padding is never a target, so padding changes no result. Any thread may read it. Memory: 8
/// bytes per token.
class ChatSamples {
 public:
  /// A target without a loss.
  static constexpr std::int32_t kNoTarget = -1;

  /// A conversation of more than seq_len + 1 tokens is too long. One that is cut ends there; without an answer before
  /// that place it is dropped.
  ChatSamples(std::string name, std::span<const ChatTokens> conversations, Index seq_len, ChatTooLong too_long);

  Index seq_len() const { return seq_len_; }
  Index count() const { return static_cast<Index>(ends_.size()); }
  Index num_tokens() const { return static_cast<Index>(tokens_.size()); }  ///< without padding
  const std::string& name() const { return name_; }
  std::uint64_t fingerprint() const;  ///< of all tokens and targets
  Index cut() const { return cut_; }
  Index dropped() const { return dropped_; }

  /// tokens, targets [S]
  void copy(Index sample, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) const;

 private:
  std::string name_;
  Index seq_len_ = 0, cut_ = 0, dropped_ = 0;
  std::vector<std::int32_t> tokens_, targets_;
  std::vector<std::size_t> ends_;  // of each sample
};

/// What a run on conversations reads.
struct ChatDataSets {
  ChatSamples train;
  std::optional<ChatSamples> valid;
  DataNotes notes{};
};

/// Opens data.train and data.valid as lines of conversations (for_each_conversation). data.split cuts between
/// conversations. The notes count those that were cut or dropped. Throws InputError with all bad lines of a key, and
/// where no conversation is left; ConfigError as ChatEncoder, for no data.chat_template, and for weights.
ChatDataSets open_chat_data(io::Fs& fs, const DataConfig& config, const tokenizer::Tokenizer& tokenizer, Index seq_len);

}  // namespace megalith::data
