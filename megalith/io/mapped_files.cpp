#include "megalith/io/mapped_files.h"

#include <array>
#include <atomic>
#include <utility>

namespace megalith::io {
namespace {

/// Taken while `file` is not null, by whoever put kClaimed there.
struct Place {
  std::atomic<const char*> file{nullptr};
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<std::size_t> size{0};
};
constexpr const char* kClaimed = "";

// A handler of SIGBUS has nothing else to ask: the kernel gives it an address.
std::array<Place, NotedMapping::kMaxNoted> places;
static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<std::size_t>::is_always_lock_free);

}  // namespace

NotedMapping::NotedMapping(const std::byte* begin, std::size_t size, std::string file) : file_(std::move(file)) {
  for (int i = 0; i < kMaxNoted; ++i) {
    Place& place = places[static_cast<std::size_t>(i)];
    const char* free = nullptr;
    if (!place.file.compare_exchange_strong(free, kClaimed)) continue;
    place.begin = begin;
    place.size = size;
    place.file = file_.c_str();
    place_ = i;
    return;
  }
}

NotedMapping::~NotedMapping() {
  if (place_ < 0) return;
  Place& place = places[static_cast<std::size_t>(place_)];
  place.size = 0;
  place.file = nullptr;
}

const char* mapped_file_at(const void* address) {
  const auto* const at = static_cast<const std::byte*>(address);
  for (const Place& place : places) {
    const char* const file = place.file;
    if (file == nullptr) continue;
    const std::byte* const begin = place.begin;
    if (at >= begin && at < begin + place.size.load()) return file;
  }
  return nullptr;
}

}  // namespace megalith::io
