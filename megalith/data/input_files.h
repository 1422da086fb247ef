#pragma once
#include <string>
#include <vector>

#include "megalith/io/fs.h"

namespace megalith::data {

/// The files that arguments of --input stand for, in their order: a file is itself; a folder stands for its files, and
/// a pattern (* ? [a-z] in the names of a path) for the files that match, both in name order. Left out of folders and
/// patterns: folders, names that begin with '.' or '_', and what megalith's own reports are called.
/// Throws InputError for an argument that stands for no file.
std::vector<io::Path> input_files(io::Fs& fs, const std::vector<std::string>& arguments);

}  // namespace megalith::data
