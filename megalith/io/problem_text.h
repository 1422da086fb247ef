#pragma once
#include <string>
#include <string_view>

#include "megalith/io/fs.h"

namespace megalith::io {

/// "cannot read a/b: permission denied": what an operation of an Fs (operation_name() in fault_fs.h) could not do, to
/// what, and the system's reason.
std::string system_problem(std::string_view operation, std::string_view what, int error);

/// Behind "there is no such file" and the like: "; it was looked for in FOLDER" for a relative path, else "".
std::string looked_for_in(const Path& path);

}  // namespace megalith::io
