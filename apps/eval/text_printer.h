#pragma once
#include <string>
#include <vector>

#include "megalith/eval/generate.h"

#include "apps/eval/prompts.h"

namespace megalith::apps {

/// One text of a command: a sample of a prompt.
struct TextOfPrompt {
  const Prompt* prompt = nullptr;
  Index number = 1;  ///< of the prompt, from 1
  Index sample = 0;  ///< of it, from 0
};

enum class TextFormat : std::uint8_t { text, json };
/// Rank 0 prints; others keep what they write.
enum class Printing : std::uint8_t { off, on };

/// "max_tokens", "end_of_text", "stop": how a text ended, as JSON prints it.
std::string_view name_of(eval::Ending ending);

/// Prints texts in their order, whatever order they are written in: as text the first that is not complete streams, as
/// JSON each is one line once it is complete. One text is its prompt and what follows; several have a line in front.
class TextPrinter {
 public:
  TextPrinter(std::vector<TextOfPrompt> texts, TextFormat format, Printing printing);

  /// The texts begin: prints what stands before the first.
  void begin();
  void add(std::size_t text, const std::string& piece);
  void slid(std::size_t text, Index times = 1) {
    written_[text].slides += times;
    slides_ += times;
  }
  /// A line for standard error: within a text that streams it waits for that text's end.
  void note(const std::string& line);
  bool has_slid() const { return slides_ > 0; }
  void end(std::size_t text, eval::Ending ending, Index tokens);
  /// JSON only: the last line. Throws IoError where standard output took not all.
  void summary(const std::string& json);

  /// What was written of a text.
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
  std::vector<std::string> notes_;  // that wait
  std::size_t next_ = 0;            // the first that is not printed
  Index slides_ = 0;                // of all
};

}  // namespace megalith::apps
