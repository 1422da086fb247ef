#include "megalith/corpus/titles.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/utf8.h"
#include "megalith/data/byte_source.h"

namespace megalith::corpus {
namespace {

/// Calls use(character, whether it is white space) for each.
template <class Use>
void for_each_character(std::string_view text, const Use& use) {
  while (!text.empty()) {
    const std::size_t size = std::min(std::max<std::size_t>(1, utf8_front(text).good), text.size());
    use(text.substr(0, size), ends_in_white_space(text.substr(0, size), size));
    text.remove_prefix(size);
  }
}

bool is_blank_line(std::string_view line) { return fold_white_space(line).empty(); }

/// "Title" of " = Title = "; "" for any other line, also for one of a lower level.
std::string_view heading(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t\r"), last = line.find_last_not_of(" \t\r");
  if (first == std::string_view::npos) return "";
  line = line.substr(first, last - first + 1);
  if (line.size() < 5 || !line.starts_with("= ") || !line.ends_with(" =")) return "";
  line = line.substr(2, line.size() - 4);
  return line.starts_with('=') || line.ends_with('=') ? "" : line;
}

/// The key by which titles of WikiText are compared.
std::string joined_key(std::string_view title) {
  std::string key;
  for_each_character(title, [&](std::string_view character, bool is_white_space) {
    if (!is_white_space) key += character;
  });
  for (const std::string_view mark : {"@-@", "@,@", "@.@"})
    for (std::size_t at; (at = key.find(mark)) != std::string::npos;) key.replace(at, 3, 1, mark[1]);
  return key;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// The whole text of a file, compressed or not. Throws InputError unless it is UTF-8.
std::string read_text(io::Fs& fs, const io::Path& file) {
  const auto source = data::open_bytes(fs, file);
  while (source->extend()) {
  }
  std::string text(source->window());
  if (const std::size_t good = valid_utf8_prefix(text); good != text.size())
    throw InputError(str("[", file.string(), "] byte ", good, " must be UTF-8"));
  return text;
}

}  // namespace

std::string fold_white_space(std::string_view text) {
  std::string out;
  bool pending = false;
  for_each_character(text, [&](std::string_view character, bool is_white_space) {
    if (!is_white_space) {
      if (pending && !out.empty()) out += ' ';
      out += character;
    }
    pending = is_white_space;
  });
  return out;
}

std::string_view first_line(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (!is_blank_line(line)) {
      const std::string_view title = heading(line);
      return title.empty() ? line : title;
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return "";
}

void Titles::add(std::map<std::string, std::size_t, std::less<>>& keys, std::string key, std::string_view title) {
  if (key.empty() || !keys.emplace(std::move(key), titles_.size()).second) return;
  titles_.push_back(fold_white_space(title));
}

void Titles::add_list(io::Fs& fs, const io::Path& file) {
  const std::string text = read_text(fs, file);
  for (const std::string_view line : lines_of(text)) add(folded_, fold_white_space(line), line);
}

void Titles::add_wikitext(io::Fs& fs, const io::Path& file) {
  const std::string text = read_text(fs, file);
  const std::vector<std::string_view> lines = lines_of(text);
  const std::size_t before = titles_.size();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::string_view title = heading(lines[i]);
    if (title.empty() || (i > 0 && !is_blank_line(lines[i - 1])) ||
        (i + 1 < lines.size() && !is_blank_line(lines[i + 1])))
      continue;
    // The number of articles whose titles are all "<unk>" is the number of such headings.
    if (title.find("<unk>") != std::string_view::npos)
      titles_.push_back(fold_white_space(title));
    else
      add(joined_, joined_key(title), title);
  }
  if (titles_.size() == before)
    throw InputError(
        str("[", file.string(), "] has no heading \" = Title = \" between blank lines: name a WikiText file"));
}

std::size_t Titles::index(std::string_view title) const {
  if (const auto found = folded_.find(fold_white_space(title)); found != folded_.end()) return found->second;
  if (const auto found = joined_.find(joined_key(title)); found != joined_.end()) return found->second;
  return kNone;
}

std::vector<std::string> Titles::with_unknown_words() const {
  std::vector<std::string> out;
  for (const std::string& title : titles_)
    if (title.find("<unk>") != std::string::npos) out.push_back(title);
  return out;
}

}  // namespace megalith::corpus
