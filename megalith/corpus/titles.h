#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::corpus {

/// Titles of articles to remove, and how often each was found.
class Titles {
 public:
  /// Reads one title per line from a file that may be compressed (gzip, zstd, xz). Blank lines are ignored. Throws
  /// InputError.
  void add_list(io::Fs& fs, const io::Path& file);
  /// Reads the level-1 headings of a WikiText file: lines " = Title = " with blank lines before and after. Throws
  /// InputError for a file without any.
  void add_wikitext(io::Fs& fs, const io::Path& file);

  /// Whether the title is listed. Titles of lists are compared after white space was folded. Those of WikiText, whose
  /// marks stand apart (" @-@ ", "( film )"), are compared without white space and "@".
  bool has(std::string_view title) const { return index(title) != kNone; }
  static constexpr std::size_t kNone = ~std::size_t{0};
  /// The number of the listed title, from 0; kNone when it is not listed. Any number of threads may call it at once.
  std::size_t index(std::string_view title) const;

  std::size_t size() const { return titles_.size(); }
  const std::string& title(std::size_t index) const { return titles_[index]; }
  /// Titles with "<unk>", the mark of a replaced word: no article has them.
  std::vector<std::string> with_unknown_words() const;

 private:
  void add(std::map<std::string, std::size_t, std::less<>>& keys, std::string key, std::string_view title);

  std::vector<std::string> titles_;
  std::map<std::string, std::size_t, std::less<>> folded_, joined_;
};

/// The first line of a text that is not blank, without the marks of a heading (" = Title = ").
std::string_view first_line(std::string_view text);

/// Removes white space at the ends, and replaces other white space by single spaces.
std::string fold_white_space(std::string_view text);

}  // namespace megalith::corpus
