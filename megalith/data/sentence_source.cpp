#include "megalith/data/sentence_source.h"

#include <algorithm>
#include <utility>

#include "megalith/base/hash.h"
#include "megalith/data/token_source.h"

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
  MemorySentences(std::string name, SentenceText text) : SentenceSource(std::move(name)), text_(std::move(text)) {}
  Index num_documents() const override { return std::ssize(text_.first_sentence) - 1; }
  Index first_sentence(Index document) const override {
    return text_.first_sentence[static_cast<std::size_t>(document)];
  }
  Index first_token(Index sentence) const override { return text_.first_token[static_cast<std::size_t>(sentence)]; }
  Index text_end(Index document) const override { return first_token(first_sentence(document + 1)); }
  void copy(Index first, std::span<std::int32_t> out) const override {
    std::copy_n(text_.tokens.begin() + first, out.size(), out.begin());
  }

 private:
  SentenceText text_;
};

class JoinedSentences final : public SentenceSource {
 public:
  explicit JoinedSentences(std::vector<SentenceSourcePtr> sources)
      : SentenceSource(sources.front()->name()), sources_(std::move(sources)) {
    for (const SentenceSourcePtr& source : sources_) {
      const Index documents = source->num_documents(), sentences = source->first_sentence(documents);
      documents_.push_back(documents_.back() + documents);
      sentences_.push_back(sentences_.back() + sentences);
      tokens_.push_back(tokens_.back() + source->first_token(sentences));
    }
  }
  std::uint64_t fingerprint() const override {
    std::uint64_t hash = sources_.front()->fingerprint();
    for (std::size_t i = 1; i < sources_.size(); ++i) hash = hash_combine(hash, sources_[i]->fingerprint());
    return hash;
  }
  Index num_documents() const override { return documents_.back(); }
  Index first_sentence(Index document) const override {
    const std::size_t i = source_of(documents_, document);
    return sentences_[i] + sources_[i]->first_sentence(document - documents_[i]);
  }
  Index first_token(Index sentence) const override {
    const std::size_t i = source_of(sentences_, sentence);
    return tokens_[i] + sources_[i]->first_token(sentence - sentences_[i]);
  }
  Index text_end(Index document) const override {
    const std::size_t i = source_of(documents_, document);
    return tokens_[i] + sources_[i]->text_end(document - documents_[i]);
  }
  /// Tokens of one document lie in one source.
  void copy(Index first, std::span<std::int32_t> out) const override {
    const std::size_t i = source_of(tokens_, first);
    sources_[i]->copy(first - tokens_[i], out);
  }

 private:
  /// The last source that begins at or before a number; of its end, the last that has some.
  std::size_t source_of(const std::vector<Index>& begins, Index number) const {
    const auto after = std::ranges::upper_bound(begins, number);
    return std::min(static_cast<std::size_t>(after - begins.begin()), sources_.size()) - 1;
  }

  std::vector<SentenceSourcePtr> sources_;
  std::vector<Index> documents_ = {0}, sentences_ = {0}, tokens_ = {0};  // before each source, and of all
};

}  // namespace

std::uint64_t SentenceSource::fingerprint() const {
  const Index documents = num_documents();
  const std::uint64_t parts =
      hash_combine(static_cast<std::uint64_t>(documents), static_cast<std::uint64_t>(first_sentence(documents)));
  return hash_combine(parts, fingerprint_of_tokens(
                                 num_tokens(), [this](Index first, std::span<std::int32_t> out) { copy(first, out); }));
}

SentenceSourcePtr indexed_sentences(IndexedDataset dataset, std::int32_t end_of_document) {
  return std::make_shared<IndexedSentences>(std::move(dataset), end_of_document);
}

SentenceSourcePtr memory_sentences(std::string name, SentenceText text) {
  return std::make_shared<MemorySentences>(std::move(name), std::move(text));
}

SentenceSourcePtr joined_sentences(std::vector<SentenceSourcePtr> sources) {
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_shared<JoinedSentences>(std::move(sources));
}

}  // namespace megalith::data
