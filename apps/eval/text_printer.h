#pragma once
#include <string>
#include <vector>

#include "megalith/eval/generate.h"

#include "apps/eval/prompts.h"

namespace megalith::apps {

/// One text: a sample of a prompt.
struct TextOfPrompt {
  const Prompt* prompt = nullptr;
  Index number = 1;  ///< of the prompt, from 1
  Index sample = 0;  ///< of the prompt, from 0
};

enum class TextFormat : std::uint8_t { text, json };
/// Rank 0 prints. Others keep their output.
enum class Printing : std::uint8_t { off, on };

/// "max_tokens", "end_of_text", "stop": how a text ended, as JSON prints it.
std::string_view name_of(eval::Ending ending);

/// Prints texts in their order, whatever order they are written in. As text, the first incomplete one is streamed. As
/// JSON, each is one line once it is complete. One text is printed as its prompt and the continuation; several have a
/// header line each.
class TextPrinter {
 public:
  TextPrinter(std::vector<TextOfPrompt> texts, TextFormat format, Printing printing);

  /// Prints what comes before the first text.
  void begin();
  void add(std::size_t text, const std::string& piece);
  void slid(std::size_t text, Index times = 1) {
    written_[text].slides += times;
    slides_ += times;
  }
  /// Prints a line on standard error; while a text is streamed, after the end of that text.
  void note(const std::string& line);
  bool has_slid() const { return slides_ > 0; }
  void end(std::size_t text, eval::Ending ending, Index tokens);
  /// JSON only: the last line. Throws IoError if standard output did not take all.
  void summary(const std::string& json);

  /// The output of a text.
  struct Written {
    std::string text;
    Index tokens = 0, slides = 0;
    eval::Ending ending = eval::Ending::max_tokens;
    bool is_complete = false;
  };
  bool prints() const { return printing_ == Printing::on; }
  const Written& written(std::size_t text) const { return written_[text]; }

 private:
  void print(const std::string& text) const;
  void print_front();
  std::string json_line(std::size_t text) const;

  std::vector<TextOfPrompt> texts_;
  TextFormat format_;
  Printing printing_;
  std::vector<Written> written_;
  std::vector<std::string> notes_;  // for standard error, that wait
  std::size_t next_ = 0;            // the first text that is not printed
  Index slides_ = 0;                // of all
};

}  // namespace megalith::apps
