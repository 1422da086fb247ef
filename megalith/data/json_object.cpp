#include "megalith/data/json_object.h"

#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/reader.h"

namespace megalith::data {
namespace {

/// Reads characters and counts the line ends that it has passed, which nlohmann does not tell its handlers.
class LineCounter {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  LineCounter(const char* at, std::size_t* line) : at_(at), line_(line) {}
  reference operator*() const { return *at_; }
  LineCounter& operator++() {
    if (*at_++ == '\n') ++*line_;
    return *this;
  }
  bool operator==(const LineCounter& other) const { return at_ == other.at_; }
  bool operator!=(const LineCounter& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  std::size_t* line_;
};

class Handler final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Handler(std::string_view source, const std::size_t& line, const std::function<void(JsonMember&)>& visit)
      : source_(source), line_(line), visit_(visit) {}

  bool null() override { return member(JsonMember::Kind::other); }
  bool boolean(bool) override { return member(JsonMember::Kind::other); }
  bool number_integer(number_integer_t) override { return member(JsonMember::Kind::other); }
  bool number_float(number_float_t, const string_t&) override { return member(JsonMember::Kind::other); }
  bool binary(binary_t&) override { return member(JsonMember::Kind::other); }
  bool number_unsigned(number_unsigned_t value) override { return member(JsonMember::Kind::count, nullptr, value); }
  bool string(string_t& value) override { return member(JsonMember::Kind::text, &value); }
  bool key(string_t& value) override {
    if (depth_ == 1) {
      key_ = std::move(value);
      key_line_ = line_;
    }
    return true;
  }
  bool start_object(std::size_t) override {
    if (depth_ > 0) member(JsonMember::Kind::other);
    ++depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    member(JsonMember::Kind::other);
    ++depth_;
    return true;
  }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception& error) override {
    // "[json.exception...] parse error at line 1, column 9: the reason": the place and the library's name are dropped.
    std::string reason = error.what();
    if (const std::size_t colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
    throw InputError(str("[", source_, "] line ", line_, ", not valid JSON: ", io::printable(reason, 160)));
  }

 private:
  bool leave() {
    --depth_;
    return true;
  }
  bool member(JsonMember::Kind kind, std::string* text = nullptr, std::uint64_t count = 0) {
    if (depth_ == 0)
      throw InputError(str("[", source_, "] line ", line_, ", JSON value: must be an object, {\"key\": ...}"));
    if (depth_ > 1) return true;
    JsonMember found{.key = key_, .kind = kind, .text = text, .count = count, .line = key_line_};
    visit_(found);
    return true;
  }

  std::string_view source_;
  const std::size_t& line_;
  const std::function<void(JsonMember&)>& visit_;
  std::string key_;
  std::size_t key_line_ = 1;
  std::size_t depth_ = 0;
};

}  // namespace

void visit_json_object(std::string_view json, std::string_view source, std::size_t first_line,
                       const std::function<void(JsonMember&)>& visit) {
  std::size_t line = first_line;
  Handler handler(source, line, visit);
  const char* end = json.data() + json.size();
  nlohmann::json::sax_parse(LineCounter(json.data(), &line), LineCounter(end, &line), &handler);
}

}  // namespace megalith::data
