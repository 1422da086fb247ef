#include "apps/eval/text_stream.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace megalith::apps {

std::string TextStream::push(std::int32_t id) {
  if (is_stopped_ || id >= tokenizer_->vocab_size()) return {};
  return take(decoder_.push(id));
}

std::string TextStream::finish() {
  if (is_stopped_) return {};
  std::string rest = take(decoder_.finish());
  if (!is_stopped_) rest += std::exchange(held_, {});
  return rest;
}

std::string TextStream::take(std::string text) {
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    is_stopped_ = true;
    return std::exchange(held_, {}).substr(0, first);
  }
  std::size_t keep = 0;  // bytes at the end that a stop text begins with
  for (const std::string& stop : stops_) {
    for (std::size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (held_.ends_with(std::string_view(stop).substr(0, size))) keep = size;
    }
  }
  text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

}  // namespace megalith::apps
