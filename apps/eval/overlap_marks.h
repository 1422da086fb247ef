#pragma once
#include <string>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::apps {

/// Which examples of an evaluation occur in training text by `data overlap`: those that share at least one n-gram with
/// it. `folder` is its --output. `data` is the evaluated file, one of its --test. Throws InputError for a folder
/// without such a result, without that file, or with a number of documents other than `examples`.
std::vector<bool> read_overlap_marks(io::Fs& fs, const io::Path& folder, const std::string& data, std::size_t examples);

}  // namespace megalith::apps
