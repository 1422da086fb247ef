#include "megalith/train/event_file.h"

#include <array>
#include <bit>
#include <chrono>

#include <unistd.h>

#include "megalith/base/host.h"
#include "megalith/base/str.h"

namespace megalith::train {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
  constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

/// tfrecord stores checksums so that a record within a record does not check itself.
std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <class T>
std::string little(T value) {
  std::string bytes(sizeof value, '\0');
  for (std::size_t i = 0; i < sizeof value; ++i) bytes[i] = static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

// The few parts of the protocol buffers wire format that events need.
enum Wire { varint_type = 0, fixed64_type = 1, bytes_type = 2, fixed32_type = 5 };

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
std::string key(int field, Wire type) { return varint(static_cast<std::uint64_t>(field) << 3 | type); }
std::string whole(int field, std::uint64_t value) { return key(field, varint_type) + varint(value); }
std::string real(int field, double value) {
  return key(field, fixed64_type) + little(std::bit_cast<std::uint64_t>(value));
}
std::string real(int field, float value) {
  return key(field, fixed32_type) + little(std::bit_cast<std::uint32_t>(value));
}
std::string bytes(int field, std::string_view value) {
  return key(field, bytes_type) + varint(value.size()) + std::string(value);
}

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

/// Event { double wall_time = 1; int64 step = 2; <what> }
std::string event(Index step, const std::string& what) {
  return real(1, now_s()) + whole(2, static_cast<std::uint64_t>(step)) + what;
}

void write_record(io::LogFile& file, const std::string& data) {
  const std::string length = little(static_cast<std::uint64_t>(data.size()));
  file.write(length + little(masked_crc(length)) + data + little(masked_crc(data)));
}

/// The path of a file of this start's own, in a folder that is made.
io::Path made_in(io::Fs& fs, const io::Path& folder) {
  fs.make_dir(folder);
  return folder / str("events.out.tfevents.", static_cast<long long>(now_s()), ".", host_name(), ".", ::getpid());
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~crc;
}

EventFile::EventFile(io::Fs& fs, const io::Path& folder, Index resumed_step) : file_(fs, made_in(fs, folder)) {
  constexpr int kFileVersion = 3, kSessionLog = 7, kStatus = 1, kStart = 1;
  write_record(file_, event(0, bytes(kFileVersion, "brain.Event:2")));
  // "This session starts at a step": what an earlier one logged from there on is void.
  if (resumed_step > 0) write_record(file_, event(resumed_step + 1, bytes(kSessionLog, whole(kStatus, kStart))));
}

void EventFile::write(Index step, const std::vector<Scalar>& scalars) {
  constexpr int kSummary = 5, kValue = 1, kTag = 1, kSimpleValue = 2;
  std::string summary;
  for (const Scalar& scalar : scalars)
    summary += bytes(kValue, bytes(kTag, scalar.tag) + real(kSimpleValue, static_cast<float>(scalar.value)));
  write_record(file_, event(step, bytes(kSummary, summary)));
}

}  // namespace megalith::train
