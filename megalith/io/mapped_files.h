#pragma once
#include <cstddef>
#include <string>

namespace megalith::io {

/// Records, while it lives, which file is mapped at an address. Up to kMaxNoted at a time are noted, further ones are
/// not. May be used from several threads.
class NotedMapping {
 public:
  static constexpr int kMaxNoted = 4096;
  NotedMapping(const std::byte* begin, std::size_t size, std::string file);
  NotedMapping(const NotedMapping&) = delete;
  NotedMapping& operator=(const NotedMapping&) = delete;
  ~NotedMapping();

 private:
  std::string file_;
  int place_ = -1;
};

/// The file that is mapped there; null where none is noted. For signal handlers: takes no lock, allocates nothing.
const char* mapped_file_at(const void* address);

}  // namespace megalith::io
