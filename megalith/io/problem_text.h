#pragma once
#include <string>
#include <string_view>

#include "megalith/io/fs.h"

namespace megalith::io {

/// "cannot read a/b: permission denied": what an operation of an Fs (operation_name() in fault_fs.h) could not do, to
/// what, and the system's reason.
std::string system_problem(std::string_view operation, std::string_view what, int error);

/// "FILE is a link to TARGET, which is not there", or "..., which leads back to it": the first such link on the way to
/// `path`, else "".
std::string broken_link(const Path& path);

/// Added to "there is no such file" and the like: "; " and broken_link() where that is the
/// reason, "; it was looked for in FOLDER" for another relative path, else "".
std::string looked_for_in(const Path& path);

/// Throws InputError "WHAT: there is no such file" or "WHAT: is a folder, and must be a file", with `hint` behind it,
/// unless the file is there.
void require_file(Fs& fs, const Path& file, std::string_view what, std::string_view hint);

}  // namespace megalith::io
