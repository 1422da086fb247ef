#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// The text of drawn tokens, whole characters at a time, up to the first of several stop texts. What may be the
/// beginning of one is held back.
class TextStream {
 public:
  TextStream(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), decoder_(std::move(tokenizer)), stops_(std::move(stops)) {}

  /// What this token adds; often "". An id without text, as the padding of a vocabulary has, adds nothing.
  std::string push(std::int32_t id);
  /// The rest, once no token comes.
  std::string finish();
  /// Whether a stop text came: the text ends before it.
  bool is_stopped() const { return is_stopped_; }

 private:
  std::string take(std::string text);

  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;
  tokenizer::StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace megalith::apps
