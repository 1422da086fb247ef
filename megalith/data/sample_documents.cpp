#include "megalith/data/sample_documents.h"

namespace megalith::data {

void SampleDocuments::put(std::size_t first, std::size_t end) const {
  for (std::size_t i = first; i < end; ++i) {
    begin[i] = static_cast<std::int32_t>(first);
    positions[i] = static_cast<std::int32_t>(i - first);
  }
}

void SampleDocuments::put_padding(std::size_t first) const {
  for (std::size_t i = first; i < begin.size(); ++i) put(i, i + 1);
}

void put_documents_of(std::span<const std::int32_t> tokens, std::int32_t end_of_document, const SampleDocuments& to) {
  std::size_t first = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] != end_of_document) continue;
    to.put(first, i + 1);
    first = i + 1;
  }
  to.put(first, tokens.size());
}

}  // namespace megalith::data
