#include "megalith/data/key_hint.h"

#include <algorithm>

#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/reader.h"

namespace megalith::data {

std::string instead_of(std::string_view key, const std::vector<std::string_view>& names, std::string_view fix) {
  constexpr std::size_t kShown = 8;
  std::string there = ";";
  if (const std::string_view near = nearest(key, names); !near.empty()) {
    there = str("; did you mean ", io::printable(near), "?");
  } else if (!names.empty()) {
    there = "; there are ";
    for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i)
      there += str(i == 0 ? "" : ", ", io::printable(names[i]));
    there += names.size() > kShown ? ", ...;" : ";";
  }
  return str(there, ' ', fix);
}

}  // namespace megalith::data
