#pragma once
#include <string>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::apps {

/// Which examples of an evaluation occur in training text, as `data overlap` has found: those with at least one n-gram
/// that does. `folder`: its --output. `data`: the file that is evaluated, one of its --test. Throws InputError for a
/// folder that is none, that has no such file, or has another number of documents than `examples`.
std::vector<bool> read_overlap_marks(io::Fs& fs, const io::Path& folder, const std::string& data, std::size_t examples);

}  // namespace megalith::apps
