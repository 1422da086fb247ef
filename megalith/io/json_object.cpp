#include "megalith/io/json_object.h"

#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"

namespace megalith::io {
namespace {

class Members final : public JsonVisitor {
 public:
  Members(std::string_view source, const std::function<void(JsonMember&)>& visit) : source_(source), visit_(visit) {}

  void text(std::string& value) override { member(JsonMember::Kind::text, &value); }
  void count(std::uint64_t value) override { member(JsonMember::Kind::count, nullptr, value); }
  void other(std::string_view shown) override {
    member(shown == "null" ? JsonMember::Kind::null : JsonMember::Kind::other);
  }
  void key(std::string& name) override {
    if (depth_ > 1) return;
    key_ = std::move(name);
    key_line_ = place.line;
  }
  void start_object() override {
    if (depth_ > 0) member(JsonMember::Kind::other);
    ++depth_;
  }
  void start_array() override {
    member(JsonMember::Kind::other);
    ++depth_;
  }
  void end_object() override { --depth_; }
  void end_array() override { --depth_; }

 private:
  void member(JsonMember::Kind kind, std::string* text = nullptr, std::uint64_t count = 0) {
    if (depth_ == 0)
      throw InputError(str("[", source_, "] line ", place.line, ", JSON value: must be an object, {\"key\": ...}"));
    if (depth_ > 1) return;
    JsonMember found{.key = key_, .kind = kind, .text = text, .count = count, .line = key_line_};
    visit_(found);
  }

  std::string_view source_;
  const std::function<void(JsonMember&)>& visit_;
  std::string key_;
  std::size_t key_line_ = 1;
  std::size_t depth_ = 0;
};

}  // namespace

void visit_json_object(std::string_view json, std::string_view source, std::size_t first_line,
                       const std::function<void(JsonMember&)>& visit) {
  Members members(source, visit);
  visit_json(json, {.name = source, .first_line = first_line}, members);
}

}  // namespace megalith::io
