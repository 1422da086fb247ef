#pragma once
#include <string>
#include <vector>

#include "megalith/data/corpus_reader.h"
#include "megalith/io/fs.h"

namespace megalith::data {

/// The files that arguments of --input stand for, in their order: a file is itself; a folder stands for its files, and
/// a pattern (* ? [a-z] in the names of a path) for the files that match, both in name order. Left out of folders and
/// patterns: folders, names that begin with '.' or '_', and what megalith's own reports are called.
/// Throws InputError for an argument that stands for no file.
std::vector<io::Path> input_files(io::Fs& fs, const std::vector<std::string>& arguments);

/// Throws InputError, with what to do, for a name of a table: .csv or .tsv, before .gz .zst .xz too. Its columns are
/// not read, and as a text it would be one document of all rows.
void refuse_table(const io::Path& file);

/// Whether one of the files has members or columns, which a key names: JSON lines or Parquet. Throws as format_of().
bool any_has_members(io::Fs& fs, const std::vector<io::Path>& files, CorpusFormat format);

/// "12 files: a.txt, b.txt, c.txt, ...": how many, and the names of the first three.
std::string files_text(const std::vector<io::Path>& files);

}  // namespace megalith::data
