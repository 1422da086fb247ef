#include "megalith/io/problem_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <system_error>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::io {

std::string broken_link(const Path& path) {
  Path way;
  for (const Path& part : path) {
    way /= part;
    std::error_code error, ignored;
    if (!std::filesystem::is_symlink(way, error) || std::filesystem::exists(way, error)) continue;
    const bool is_loop = error == std::errc::too_many_symbolic_link_levels;
    return str(way.string(), " is a link to ", std::filesystem::read_symlink(way, ignored).string(),
               is_loop ? ", which leads back to it" : ", which is not there");
  }
  return "";
}

std::string system_problem(std::string_view operation, std::string_view what, int error) {
  // Names of operations that are not a reader's words.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kTasks = {{
      {"append", "append to"},
      {"map", "read"},
      {"sync_dir", "sync the folder"},
      {"make_dir", "make the folder"},
      {"unlink", "remove"},
      {"remove_dir", "remove the folder"},
      {"list", "list the folder"},
      {"exists", "look for"},
      {"is_dir", "look for"},
  }};
  const auto* const task = std::ranges::find(kTasks, operation, [](const auto& one) { return one.first; });
  std::string reason = std::generic_category().message(error);
  if (!reason.empty()) reason[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(reason[0])));
  return str("cannot ", task == kTasks.end() ? operation : task->second, ' ', what, ": ", reason,
             error == ENOENT ? looked_for_in(what) : std::string());
}

std::string looked_for_in(const Path& path) {
  if (const std::string link = broken_link(path); !link.empty()) return "; " + link;
  std::error_code error;
  const Path here = std::filesystem::current_path(error);
  return path.is_absolute() || error ? std::string() : str("; it was looked for in ", here.string());
}

void require_file(Fs& fs, const Path& file, std::string_view what, std::string_view hint) {
  if (!fs.exists(file)) throw InputError(str(what, ": there is no such file", hint));
  if (fs.is_dir(file)) throw InputError(str(what, ": is a folder, and must be a file", hint));
}

}  // namespace megalith::io
