#include "apps/eval/line_input.h"

#include <array>
#include <cerrno>

#include <poll.h>
#include <unistd.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/data/corpus_reader.h"

namespace megalith::apps {

bool LineInput::is_typed() { return isatty(STDIN_FILENO) != 0; }

/// Whether a line is complete: at its end, or at the end of all lines.
bool LineInput::take(std::string& line) {
  const std::size_t end = held_.find('\n');
  if (end == std::string::npos && !(has_ended_ && !held_.empty())) return false;
  line = held_.substr(0, end);
  held_.erase(0, end == std::string::npos ? end : end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

LineInput::Found LineInput::next(double seconds, std::string& line) {
  if (take(line)) return Found::line;
  if (has_ended_) return Found::end;
  pollfd waited{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  if (::poll(&waited, 1, static_cast<int>(seconds * 1000)) <= 0) return Found::nothing;  // also when a signal came
  std::array<char, 65536> bytes;
  const ssize_t count = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return Found::nothing;
  if (count < 0) throw IoError("[standard input] read failed");
  has_ended_ = count == 0;
  held_.append(bytes.data(), static_cast<std::size_t>(count));
  if (held_.size() > static_cast<std::size_t>(data::kDefaultMaxLine) && held_.find('\n') == std::string::npos)
    throw InputError(str("[standard input] a line has over ", data::kDefaultMaxLine, " bytes: must be shorter"));
  return take(line) ? Found::line : has_ended_ ? Found::end : Found::nothing;
}

}  // namespace megalith::apps
