#include "megalith/data/token_source.h"

#include <algorithm>
#include <array>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/str.h"

namespace megalith::data {
namespace {

class MemorySource final : public TokenSource {
 public:
  MemorySource(std::string name, std::vector<std::int32_t> tokens, Index vocab_size)
      : TokenSource(std::move(name), static_cast<Index>(tokens.size()), vocab_size), tokens_(std::move(tokens)) {}

 private:
  void read(Index first, std::span<std::int32_t> out) const override {
    std::copy_n(tokens_.begin() + first, out.size(), out.begin());
  }
  std::vector<std::int32_t> tokens_;
};

class IndexedSource final : public TokenSource {
 public:
  IndexedSource(IndexedDataset dataset, Index vocab_size)
      : TokenSource(bin_path(dataset.prefix()).string(), dataset.num_tokens(), vocab_size),
        dataset_(std::move(dataset)) {}

 private:
  void read(Index first, std::span<std::int32_t> out) const override { dataset_.copy(first, out); }
  IndexedDataset dataset_;
};

}  // namespace

class JoinedSource final : public TokenSource {
 public:
  explicit JoinedSource(std::vector<TokenSourcePtr> sources)
      : TokenSource(name_of(sources), total(sources), sources.front()->vocab_size()), sources_(std::move(sources)) {
    Index end = 0;
    for (const TokenSourcePtr& source : sources_) {
      if (source->vocab_size() != vocab_size())
        throw InternalError(str("[joined_source] ", source->name(), " has another vocab_size than ", name()));
      ends_.push_back(end += source->num_tokens());
    }
  }

 private:
  static std::string name_of(const std::vector<TokenSourcePtr>& sources) {
    return str(sources.front()->name(), " and ", sources.size() - 1, " more");
  }
  static Index total(const std::vector<TokenSourcePtr>& sources) {
    Index sum = 0;
    for (const TokenSourcePtr& source : sources) sum += source->num_tokens();
    return sum;
  }
  void read(Index first, std::span<std::int32_t> out) const override {
    auto source = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
    while (!out.empty()) {
      const Index begin = source == 0 ? 0 : ends_[source - 1];
      const auto some = static_cast<std::size_t>(std::min(ends_[source] - first, static_cast<Index>(out.size())));
      // Not read(): an invalid id is reported with the name and place of its own file.
      sources_[source]->copy(first - begin, out.first(some));
      first += static_cast<Index>(some);
      out = out.subspan(some);
      ++source;
    }
  }

  std::vector<TokenSourcePtr> sources_;
  std::vector<Index> ends_;  // where each source ends, in tokens of the whole
};

void TokenSource::copy(Index first, std::span<std::int32_t> out) const {
  const auto count = static_cast<Index>(out.size());
  if (first < 0 || count > num_tokens_ - first)
    throw ShapeError(str("[", name_, "] tokens ", first, " to ", first + count, ": the source holds ", num_tokens_));
  read(first, out);
  const auto outside = [&](std::int32_t id) { return id < 0 || id >= vocab_size_; };
  if (const auto bad = std::find_if(out.begin(), out.end(), outside); bad != out.end())
    throw InputError(str("[", name_, "] token ", first + (bad - out.begin()), " = ", *bad,
                         ": must be below vocab_size ", vocab_size_, "; the file was made with another tokenizer"));
}

std::uint64_t TokenSource::fingerprint() const {
  return fingerprint_of_tokens(num_tokens_, [this](Index first, std::span<std::int32_t> out) { copy(first, out); });
}

std::uint64_t fingerprint_of_tokens(Index num_tokens, const std::function<void(Index, std::span<std::int32_t>)>& copy) {
  constexpr Index kStretch = 4096, kMaxStretches = 16384;
  std::array<std::int32_t, kStretch> ids{};
  std::uint64_t hash = hash_combine(fnv1a("tokens"), static_cast<std::uint64_t>(num_tokens));
  const Index stretches = std::min(kMaxStretches, ceil_div(num_tokens, kStretch));
  const bool all = stretches * kStretch >= num_tokens;
  for (Index i = 0; i < stretches; ++i) {
    // (num_tokens - size) * i stays below 2^63: 2^49 tokens would not fit any disk.
    const Index first = all ? i * kStretch : (num_tokens - kStretch) * i / (stretches - 1);
    const std::span some = std::span(ids).first(static_cast<std::size_t>(std::min(kStretch, num_tokens - first)));
    copy(first, some);
    for (std::size_t k = 0; k < some.size(); k += 2) {
      const std::uint64_t high = k + 1 < some.size() ? static_cast<std::uint64_t>(some[k + 1]) << 32 : 0;
      hash = hash_combine(hash, high | static_cast<std::uint32_t>(some[k]));
    }
  }
  return hash;
}

TokenSourcePtr memory_source(std::string name, std::vector<std::int32_t> tokens, Index vocab_size) {
  return std::make_shared<MemorySource>(std::move(name), std::move(tokens), vocab_size);
}

TokenSourcePtr indexed_source(IndexedDataset dataset, Index vocab_size) {
  return std::make_shared<IndexedSource>(std::move(dataset), vocab_size);
}

TokenSourcePtr joined_source(std::vector<TokenSourcePtr> sources) {
  if (sources.empty()) throw InternalError("[joined_source] no source");
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_shared<JoinedSource>(std::move(sources));
}

}  // namespace megalith::data
