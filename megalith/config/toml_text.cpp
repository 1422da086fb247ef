#include "megalith/config/toml_text.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "megalith/base/str.h"

namespace megalith::config {
namespace {

/// Follows brackets, dots of keys and strings. toml++ bounds the nesting of values, but not that of dotted keys.
class TomlScanner {
 public:
  /// A [section], or the name of a key outside brackets, as the text has it.
  struct Name {
    std::string_view text;
    std::size_t line;
    bool is_header;
  };

  explicit TomlScanner(std::string_view text) : text_(text) {}

  /// The first byte that is too deep.
  std::optional<std::size_t> find_depth() {
    while (at_ < text_.size()) {
      const std::size_t here = at_;
      take(text_[at_++]);
      if (depth_ > kMaxTomlDepth) return here;
    }
    return std::nullopt;
  }
  std::vector<Name> names() {
    std::vector<Name> all;
    std::size_t begin = 0, line = 1, counted = 0;
    while (at_ < text_.size()) {
      const std::size_t here = at_;
      const In before = in_;
      take(text_[at_++]);
      if (before == In::beginning && in_ != In::beginning) begin = here;
      const bool is_key = before == In::key && in_ == In::value && brackets_.empty();
      const bool is_header = before == In::header && in_ == In::beginning;
      if (!is_key && !is_header) continue;
      line += static_cast<std::size_t>(std::ranges::count(text_.substr(counted, begin - counted), '\n'));
      counted = begin;
      all.push_back({text_.substr(begin, here - begin), line, is_header});
    }
    return all;
  }

 private:
  /// What stands at the beginning of a line outside brackets, in a name or key, in a value.
  enum class In { beginning, header, key, value };
  struct Bracket {
    char open;
    int depth;  ///< in front of it
  };

  void take(char c) {
    if (c == '"' || c == '\'') skip_string(c);
    if (c == '#') at_ = std::min(text_.find('\n', at_), text_.size());
    if (c == '\n' && brackets_.empty()) {
      if (in_ == In::header) table_depth_ = depth_;
      depth_ = table_depth_;
      in_ = In::beginning;
    } else if (in_ == In::beginning && c == '[') {
      in_ = In::header;
      depth_ = 1;
    } else if (in_ == In::header) {
      if (c == '[' || c == '.') ++depth_;
    } else if (c == '[' || c == '{') {
      brackets_.push_back({c, depth_++});
      in_ = c == '{' ? In::key : In::value;
    } else if ((c == ']' || c == '}') && !brackets_.empty()) {
      depth_ = brackets_.back().depth;
      brackets_.pop_back();
      in_ = In::value;
    } else if (c == ',' && !brackets_.empty()) {
      depth_ = brackets_.back().depth + 1;
      in_ = brackets_.back().open == '{' ? In::key : In::value;
    } else if (c == '=') {
      in_ = In::value;
    } else if (c == '.' && in_ == In::key) {
      ++depth_;
    } else if (in_ == In::beginning && c != ' ' && c != '\t' && c != '\r') {
      in_ = In::key;
    }
  }
  /// Past the string that its first quote began.
  void skip_string(char quote) {
    const std::string three(3, quote);
    const bool is_long = text_.substr(at_ - 1).starts_with(three);
    const std::string end = is_long ? three : std::string(1, quote);
    if (is_long) at_ += 2;
    while (at_ < text_.size() && !text_.substr(at_).starts_with(end)) at_ += quote == '"' && text_[at_] == '\\' ? 2 : 1;
    at_ = std::min(at_ + end.size(), text_.size());
    while (is_long && at_ < text_.size() && text_[at_] == quote) ++at_;  // a long string may end in five quotes
  }

  std::string_view text_;
  std::size_t at_ = 0;
  In in_ = In::beginning;
  int depth_ = 0, table_depth_ = 0;
  std::vector<Bracket> brackets_;
};

}  // namespace

std::optional<std::size_t> toml_too_deep(std::string_view text) { return TomlScanner(text).find_depth(); }

std::vector<RepeatedKey> repeated_keys(std::string_view text) {
  std::map<std::string, std::size_t> first_lines;
  std::vector<RepeatedKey> repeated;
  std::string section;
  for (const auto& [written, line, is_header] : TomlScanner(text).names()) {
    std::string name(written.substr(0, is_header ? written.find('#') : written.size()));
    std::erase_if(name, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"' || c == '\''; });
    if (is_header) section = name.substr(1, name.find(']') - 1) + '.';
    const bool is_list = name.starts_with("[[");  // an element more, and not the same again
    if (is_list) first_lines.clear();
    if (is_list) continue;
    const std::string full = is_header ? name : (section.empty() ? name : section + name);
    const auto [first, is_new] = first_lines.emplace(full, line);
    if (!is_new) repeated.push_back({full, first->second, line});
  }
  return repeated;
}

toml::table read_toml(std::string_view text) {
  if (const auto deep = toml_too_deep(text)) {
    const std::string_view before = text.substr(0, *deep);
    throw TomlError{static_cast<std::size_t>(std::ranges::count(before, '\n')) + 1,
                    before.size() - (before.rfind('\n') + 1) + 1, str("nested deeper than ", kMaxTomlDepth)};
  }
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& error) {
    throw TomlError{error.source().begin.line, error.source().begin.column, std::string(error.description())};
  }
}

}  // namespace megalith::config
