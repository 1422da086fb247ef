#include "megalith/data/sentence_source.h"

#include <algorithm>
#include <utility>

namespace megalith::data {
namespace {

class IndexedSentences final : public SentenceSource {
 public:
  IndexedSentences(IndexedDataset dataset, std::int32_t end_of_document)
      : SentenceSource(bin_path(dataset.prefix()).string()),
        dataset_(std::move(dataset)),
        end_of_document_(end_of_document) {}
  Index num_documents() const override { return dataset_.num_documents(); }
  Index first_sentence(Index document) const override { return dataset_.document_begin(document); }
  Index first_token(Index sentence) const override { return dataset_.sequence_begin(sentence); }
  Index text_end(Index document) const override {
    const Index begin = first_token(first_sentence(document)), end = first_token(first_sentence(document + 1));
    if (begin == end) return end;
    std::int32_t last = 0;
    dataset_.copy(end - 1, {&last, 1});
    return last == end_of_document_ ? end - 1 : end;
  }
  void copy(Index first, std::span<std::int32_t> out) const override { dataset_.copy(first, out); }

 private:
  IndexedDataset dataset_;
  std::int32_t end_of_document_;
};

class MemorySentences final : public SentenceSource {
 public:
  MemorySentences(std::string name, const std::vector<std::vector<std::vector<std::int32_t>>>& documents)
      : SentenceSource(std::move(name)) {
    for (const auto& document : documents) {
      for (const auto& sentence : document) {
        tokens_.insert(tokens_.end(), sentence.begin(), sentence.end());
        first_token_.push_back(std::ssize(tokens_));
      }
      first_sentence_.push_back(std::ssize(first_token_) - 1);
    }
  }
  Index num_documents() const override { return std::ssize(first_sentence_) - 1; }
  Index first_sentence(Index document) const override { return first_sentence_[static_cast<std::size_t>(document)]; }
  Index first_token(Index sentence) const override { return first_token_[static_cast<std::size_t>(sentence)]; }
  Index text_end(Index document) const override { return first_token(first_sentence(document + 1)); }
  void copy(Index first, std::span<std::int32_t> out) const override {
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }

 private:
  std::vector<std::int32_t> tokens_;
  std::vector<Index> first_sentence_ = {0}, first_token_ = {0};
};

}  // namespace

SentenceSourcePtr indexed_sentences(IndexedDataset dataset, std::int32_t end_of_document) {
  return std::make_shared<IndexedSentences>(std::move(dataset), end_of_document);
}

SentenceSourcePtr memory_sentences(std::string name,
                                   const std::vector<std::vector<std::vector<std::int32_t>>>& documents) {
  return std::make_shared<MemorySentences>(std::move(name), documents);
}

}  // namespace megalith::data
