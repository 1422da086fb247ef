#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace megalith::data {

/// Cuts text into the pieces within which GPT-2's BPE merges: contractions, letters, digits or other marks, each with
/// one leading space, and white space, of which the last character stays with the word that follows.
/// The compiled pattern is shared by all threads; each brings its own Match.
class PreTokenizer {
 public:
  class Match {
   public:
    explicit Match(const PreTokenizer& owner);

   private:
    friend class PreTokenizer;
    std::shared_ptr<void> data_;
  };

  PreTokenizer();
  /// Of the library that knows which characters are letters and digits: "14.0.0".
  static std::string unicode_version();
  /// The end of the piece that begins at `begin` < text.size(). `text` is well-formed UTF-8 and not cut inside a piece.
  std::size_t piece_end(std::string_view text, std::size_t begin, Match& match) const;

 private:
  std::shared_ptr<void> code_;
};

}  // namespace megalith::data
