#include "apps/eval/text_printer.h"

#include <cstdio>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"

namespace megalith::apps {
std::string_view name_of(eval::Ending ending) {
  switch (ending) {
    case eval::Ending::max_tokens:
      return "max_tokens";
    case eval::Ending::stop_token:
      return "end_of_text";
    case eval::Ending::refused:
      return "stop";
  }
  return "";
}

TextPrinter::TextPrinter(std::vector<TextOfPrompt> texts, TextFormat format, Printing printing)
    : texts_(std::move(texts)), format_(format), printing_(printing), written_(texts_.size()) {}

void TextPrinter::print(const std::string& text) const {
  if (printing_ == Printing::off) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void TextPrinter::begin() { print_front(); }

void TextPrinter::print_front() {
  if (format_ == TextFormat::json || next_ == texts_.size()) return;
  const TextOfPrompt& text = texts_[next_];
  std::string front;
  if (texts_.size() > 1) {
    front = str(next_ > 0 ? "\n" : "", "--- prompt ", text.number);
    if (!text.prompt->name.empty()) front += str(" (", text.prompt->name, ')');
    front += str(", sample ", text.sample, " ---\n");
  }
  print(front + text.prompt->text + written_[next_].text);
}

void TextPrinter::add(std::size_t text, const std::string& piece) {
  written_[text].text += piece;
  if (format_ == TextFormat::text && text == next_ && !piece.empty()) print(piece);
}

void TextPrinter::note(const std::string& line) {
  if (format_ == TextFormat::json || next_ == texts_.size())
    log::info(line);
  else
    notes_.push_back(line);
}

void TextPrinter::end(std::size_t text, eval::Ending ending, Index tokens) {
  Written& done = written_[text];
  done.ending = ending;
  done.tokens = tokens;
  done.is_complete = true;
  while (next_ < texts_.size() && written_[next_].is_complete) {
    print(format_ == TextFormat::json ? json_line(next_) : "\n");
    for (const std::string& line : std::exchange(notes_, {})) log::info(line);
    ++next_;
    print_front();
  }
}

std::string TextPrinter::json_line(std::size_t text) const {
  const TextOfPrompt& of = texts_[text];
  const Written& done = written_[text];
  nlohmann::ordered_json line;
  line["prompt_number"] = of.number;
  if (!of.prompt->name.empty()) line["name"] = of.prompt->name;
  line["prompt"] = of.prompt->text;
  line["sample"] = of.sample;
  line["text"] = done.text;
  line["prompt_tokens"] = of.prompt->ids.size();
  line["tokens"] = done.tokens;
  line["ending"] = name_of(done.ending);
  line["slides"] = done.slides;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void TextPrinter::summary(const std::string& json) {
  if (format_ == TextFormat::json) print(json + "\n");
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) throw IoError("[standard output] write failed");
}

}  // namespace megalith::apps
