#include "megalith/io/json_reader.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <unordered_set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/reader.h"

namespace megalith::io {

std::string text_of(const JsonPlace& place) {
  return str("line ", place.line, ", column ", std::max<std::size_t>(1, place.column));
}

namespace {

using nlohmann::json;

/// Reads characters and keeps the place of the last one, which nlohmann does not tell its handlers.
class PlaceKeeper {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  PlaceKeeper(const char* at, JsonPlace* place) : at_(at), place_(place) {}
  reference operator*() const { return *at_; }
  PlaceKeeper& operator++() {
    ++place_->column;
    if (*at_++ == '\n') *place_ = {place_->line + 1, 0};
    return *this;
  }
  bool operator==(const PlaceKeeper& other) const { return at_ == other.at_; }
  bool operator!=(const PlaceKeeper& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  JsonPlace* place_;
};

/// By the words of nlohmann, which has one class of error for all of these.
JsonProblem problem_of(std::string_view reason) {
  constexpr std::array<std::pair<std::string_view, JsonProblem>, 4> kProblems = {{
      {"unexpected end of input", JsonProblem::cut},
      {"ill-formed UTF-8 byte", JsonProblem::not_utf8},
      {"surrogate U+D", JsonProblem::lone_surrogate},
      {"control character U+", JsonProblem::control_character},
  }};
  const std::string_view before_quote = reason.substr(0, reason.find("; last read: "));
  for (const auto& [words, problem] : kProblems)
    if (before_quote.find(words) != std::string_view::npos) return problem;
  // A string or a UTF-8 sequence that the text's end cuts.
  return before_quote.find("missing closing quote") != std::string_view::npos ? JsonProblem::cut : JsonProblem::syntax;
}

/// The text between two PlaceKeepers, and the rules that nlohmann does not have.
class BoundedText {
 public:
  BoundedText(std::string_view text, const JsonSource& source, JsonPlace& place)
      : text_(text), source_(source), place_(place) {
    place_ = {source.first_line, 0};
    // nlohmann takes a zero byte for the end and ignores what follows.
    const std::size_t zero = text.find('\0');
    if (zero == std::string_view::npos) return;
    for (PlaceKeeper at = begin(), end(text.data() + zero + 1, &place_); at != end;) ++at;
    fail(JsonProblem::zero_byte, "not valid JSON: a zero byte");
  }
  PlaceKeeper begin() const { return {text_.data(), &place_}; }
  PlaceKeeper end() const { return {text_.data() + text_.size(), &place_}; }

  void enter() {
    if (++depth_ > kMaxJsonDepth) fail(JsonProblem::too_deep, str("nested deeper than ", kMaxJsonDepth));
    if (keys_.size() < depth_) keys_.resize(depth_);
    keys_[depth_ - 1].clear();
  }
  void leave() { --depth_; }
  void key(const std::string& name) {
    if (!keys_[depth_ - 1].insert(name).second)
      fail(JsonProblem::key_twice, str("key \"", printable(name), "\" is there twice"));
  }
  [[noreturn]] void fail_as(const json::exception& error) const {
    // "[json.exception...] parse error at line 1, column 9: the reason": the place and the library's name are dropped.
    std::string_view reason = error.what();
    for (const std::string_view before : {"] ", ": "}) {
      const std::size_t found = reason.find(before);
      if (found != std::string_view::npos && (before == "] " || reason.starts_with("parse error")))
        reason.remove_prefix(found + before.size());
    }
    fail(problem_of(reason), str("not valid JSON: ", printable(reason, 160)));
  }

 private:
  [[noreturn]] void fail(JsonProblem problem, std::string_view rule) const {
    throw JsonError(problem, str("[", source_.name, "] ", source_.part, source_.part.empty() ? "" : ", ",
                                 text_of(place_), ", ", rule));
  }

  std::string_view text_;
  const JsonSource& source_;
  JsonPlace& place_;
  std::size_t depth_ = 0;
  std::vector<std::unordered_set<std::string>> keys_;  // of each object that is open, by depth
};

/// Hands nlohmann's events on to a visitor.
class Events final : public nlohmann::json_sax<json> {
 public:
  Events(BoundedText& text, JsonVisitor& visitor) : text_(text), visitor_(visitor) {}

  bool null() override { return other("null"); }
  bool boolean(bool value) override { return other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return other(value == 0 ? "-0" : std::to_string(value)); }
  bool number_float(number_float_t /*value*/, const string_t& shown) override { return other(shown); }
  bool binary(binary_t& /*value*/) override { return other("binary"); }
  bool number_unsigned(number_unsigned_t value) override {
    visitor_.count(value);
    return true;
  }
  bool string(string_t& value) override {
    visitor_.text(value);
    return true;
  }
  bool key(string_t& name) override {
    text_.key(name);
    visitor_.key(name);
    return true;
  }
  bool start_object(std::size_t /*size*/) override {
    text_.enter();
    visitor_.start_object();
    return true;
  }
  bool start_array(std::size_t /*size*/) override {
    text_.enter();
    visitor_.start_array();
    return true;
  }
  bool end_object() override {
    text_.leave();
    visitor_.end_object();
    return true;
  }
  bool end_array() override {
    text_.leave();
    visitor_.end_array();
    return true;
  }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/, const json::exception& error) override {
    text_.fail_as(error);
  }

 private:
  bool other(std::string_view shown) {
    visitor_.other(shown);
    return true;
  }
  BoundedText& text_;
  JsonVisitor& visitor_;
};

}  // namespace

void visit_json(std::string_view text, const JsonSource& source, JsonVisitor& visitor) {
  BoundedText bounded(text, source, visitor.place);
  Events events(bounded, visitor);
  json::sax_parse(bounded.begin(), bounded.end(), &events);
}

json read_json(std::string_view text, const JsonSource& source) {
  JsonPlace place;
  BoundedText bounded(text, source, place);
  const auto watch = [&bounded](int /*depth*/, json::parse_event_t event, const json& value) {
    using Event = json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) bounded.enter();
    if (event == Event::object_end || event == Event::array_end) bounded.leave();
    if (event == Event::key) bounded.key(value.get_ref<const std::string&>());
    return true;
  };
  try {
    return json::parse(bounded.begin(), bounded.end(), watch);
  } catch (const json::exception& error) {
    bounded.fail_as(error);
  }
}

}  // namespace megalith::io
