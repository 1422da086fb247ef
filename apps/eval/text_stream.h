#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "megalith/tokenizer/tokenizer.h"

namespace megalith::apps {

/// The text of sampled tokens in whole characters, up to the first of several stop texts. A possible beginning of a
/// stop text is kept back.
class TextStream {
 public:
  TextStream(std::shared_ptr<const tokenizer::Tokenizer> tokenizer, std::vector<std::string> stops)
      : tokenizer_(tokenizer), decoder_(std::move(tokenizer)), stops_(std::move(stops)) {}

  /// The text that this token adds; often "". Ids of the padding of a vocabulary add nothing.
  std::string push(std::int32_t id);
  /// The rest, after the last token.
  std::string finish();
  /// Whether the text ended at a stop text.
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
