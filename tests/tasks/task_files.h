#pragma once
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/io/fs.h"

#include "tests/io/temp_dir.h"
#include "tests/test_data.h"

namespace megalith::tasks {

/// Files of a test in a folder of its own.
class TaskFiles : public ::testing::Test {
 protected:
  io::Path file(const std::string& name, const std::string& contents) const {
    const io::Path path = dir_ / name;
    std::filesystem::create_directories(path.parent_path());
    write_all(path, contents);
    return path;
  }
  /// The text of the InputError that `read` throws, without the folder of the test.
  std::string refused(const std::function<void()>& read) const {
    try {
      read();
    } catch (const InputError& error) {
      std::string text = error.what();
      const std::string folder = dir_.path().string() + '/';
      for (std::size_t at = 0; (at = text.find(folder, at)) != std::string::npos;) text.erase(at, folder.size());
      return text;
    }
    return "nothing is refused";
  }

  TempDir dir_;
  std::shared_ptr<io::Fs> fs_ = io::posix_fs();
};

inline io::Path task_data(const std::string& name) { return io::Path(MEGALITH_TEST_DATA) / name; }

}  // namespace megalith::tasks
