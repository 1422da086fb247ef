#pragma once
#include <string>
#include <vector>

#include "megalith/data/corpus_reader.h"
#include "megalith/io/fs.h"

namespace megalith::data {

/// The files of the arguments of --input, in the order of the arguments. An argument is a file, a folder (its files),
/// or a pattern (* ? [a-z] in the names of a path; the files that match). Files of a folder or pattern come in name
/// order. Folders, names that begin with '.' or '_', and names of megalith's own reports are left out.
/// Throws InputError for an argument without any file.
std::vector<io::Path> input_files(io::Fs& fs, const std::vector<std::string>& arguments);

/// Throws InputError, which states the fix, for the name of a table: .csv or .tsv, also before .gz .zst .xz. Its
/// columns are not read, and as a text it would be one document of all rows.
void refuse_table(const io::Path& file);

/// Whether one of the files is JSON lines or Parquet, where a key names a member or column. Throws as format_of().
bool any_has_members(io::Fs& fs, const std::vector<io::Path>& files, CorpusFormat format);

/// "12 files: a.txt, b.txt, c.txt, ...": the number of files, and the names of the first three.
std::string files_text(const std::vector<io::Path>& files);

}  // namespace megalith::data
