#include "megalith/corpus/work_folder.h"

#include <algorithm>
#include <tuple>

#include <nlohmann/json.hpp>

#include "megalith/base/str.h"
#include "megalith/io/json_document.h"
#include "megalith/io/remove_if_there.h"

namespace megalith::corpus {
namespace {

constexpr const char *kRun = "run.json", *kLockSuffix = ".lock";
constexpr std::uint64_t kMagic = 0x324b524f574c474dULL;  // "MGLWORK2"

/// Follows the records of a product.
struct Footer {
  std::uint64_t magic = kMagic, bytes = 0;
  ProductNumbers numbers{};
  io::Hash128 of_records{}, of_footer{};

  /// The checksum of the members before it.
  io::Hash128 own_checksum() const {
    return io::checksum(std::as_bytes(std::span(this, 1)).first(sizeof *this - sizeof of_footer));
  }
};
static_assert(sizeof(Footer) == 8 * (2 + std::tuple_size_v<ProductNumbers> + 4), "no padding: its bytes are compared");

/// The checksum of the first `bytes` bytes of a file. The file is remapped for each window, as in RecordReader.
io::Hash128 checksum_of(io::Fs& fs, const io::Path& path, std::uint64_t bytes) {
  constexpr std::uint64_t kWindow = std::uint64_t{1} << 20;
  io::BlockChecksums sums;
  for (std::uint64_t at = 0; at < bytes; at += kWindow) {
    const io::MappedFile file = fs.map(path);
    if (file.bytes().size() < bytes) throw DamagedWork(path, "is not whole");
    sums.update(file.bytes().subspan(at, std::min(kWindow, bytes - at)));
  }
  return sums.finish().digest();
}

/// The same for input files, [name, size, checksum] each.
std::string difference_of_lists(std::string_view key, const nlohmann::json& here, const nlohmann::json& asked) {
  if (!here.is_array() || here.size() != asked.size())
    return str(key, ": it is of ", here.size(), ", asked are ", asked.size());
  std::size_t i = 0;
  while (here[i] == asked[i]) ++i;
  const auto is_file = [](const nlohmann::json& one) { return one.is_array() && one.size() == 3; };
  if (is_file(here[i]) && is_file(asked[i]) && here[i][0] == asked[i][0])
    return str(key, ": ", asked[i][0].get<std::string>(), " was changed since it was made");
  return str(key, "[", i, "] = ", here[i].dump(), ", asked is ", asked[i].dump());
}

nlohmann::json run_settings(io::Fs& fs, const io::Path& run) {
  const io::MappedFile file = fs.map(run);
  const std::string source = run.string();
  try {
    return io::parse_sealed_json(file.text(), {.source = source, .what = "work folder"});
  } catch (const InputError&) {
    throw DamagedWork(run);
  }
}

/// Describes where two runs differ.
std::string difference(const nlohmann::json& here, const nlohmann::ordered_json& asked) {
  for (const auto& [key, value] : asked.items()) {
    const nlohmann::json plain = value;
    if (!here.contains(key)) return str(key, " is not in it");
    if (here[key] == plain) continue;
    if (plain.is_array()) return difference_of_lists(key, here[key], plain);
    return str(key, " = ", here[key].dump(), ", asked is ", plain.dump());
  }
  return "";
}

}  // namespace

WorkFolder::WorkFolder(io::Fs& fs, io::Path folder, const nlohmann::ordered_json& settings)
    : fs_(fs), folder_(std::move(folder)) {
  fs_.make_dir(folder_);
  const io::Path run = folder_ / kRun;
  if (!fs_.exists(run)) {
    io::publish_file(fs_, run, io::seal_json(settings));
    return;
  }
  const std::string source = run.string();
  const nlohmann::json here = run_settings(fs_, run);
  if (const std::string differs = difference(here, settings); !differs.empty())
    throw CheckpointError(CheckpointError::Kind::refused,
                          str("[", source, "] ", differs,
                              ": the work of another run; give --work another folder, or "
                              "remove this one"));
}

ShareLock::ShareLock(io::Fs& fs, const io::Path& folder, int rank, int count)
    : lock_(folder, str(".share-", rank, "-of-", count, kLockSuffix)) {
  const std::string same_count = str("-of-", count, kLockSuffix);
  for (const std::string& name : fs.list(folder))
    if (name.ends_with(kLockSuffix) && !name.ends_with(same_count)) io::OutputLock(folder, name);
}

bool WorkFolder::is_one(io::Fs& fs, const io::Path& folder) { return fs.exists(folder / kRun); }

void WorkFolder::remove_leftovers(const std::string& name) {
  for (const std::string& file : fs_.list(folder_))
    if (file == name + kStaged || file.starts_with(name + ".run-")) fs_.unlink(folder_ / file);
}

void WorkFolder::finish(const std::string& name, io::OutputFile& file, std::uint64_t bytes, const io::Hash128& checksum,
                        const ProductNumbers& numbers) {
  Footer footer{.bytes = bytes, .numbers = numbers, .of_records = checksum};
  footer.of_footer = footer.own_checksum();
  file.write(std::as_bytes(std::span(&footer, 1)));
  file.sync();
  file.close();
  fs_.rename(folder_ / (name + kStaged), folder_ / name);
  fs_.sync_dir(folder_);
  const std::lock_guard lock(mutex_);
  opened_.erase(name);  // it is another file
}

WorkFolder::Product WorkFolder::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = opened_.find(name);
  return found != opened_.end() ? found->second : opened_.emplace(name, verified(name)).first->second;
}

WorkFolder::Product WorkFolder::verified(const std::string& name) {
  Product product{.path = folder_ / name};
  if (!fs_.exists(product.path)) throw DamagedWork(product.path, "is missing");
  const io::MappedFile file = fs_.map(product.path);
  Footer footer{.magic = 0};
  const std::size_t size = file.bytes().size();
  if (size >= sizeof footer) std::memcpy(&footer, file.bytes().data() + (size - sizeof footer), sizeof footer);
  if (footer.magic != kMagic || footer.bytes + sizeof footer != size || footer.own_checksum() != footer.of_footer)
    throw DamagedWork(product.path, "is not whole");
  if (checksum_of(fs_, product.path, footer.bytes) != footer.of_records) throw DamagedWork(product.path);
  product.bytes = footer.bytes;
  product.numbers = footer.numbers;
  return product;
}

void WorkFolder::remove_all() {
  for (const std::string& file : fs_.list(folder_))
    if (file.ends_with(kLockSuffix))
      io::remove_if_there(fs_, folder_ / file);  // another process, of another share, may do the same
    else if (file != kRun && !fs_.is_dir(folder_ / file))
      fs_.unlink(folder_ / file);
  if (fs_.exists(folder_ / kRun)) fs_.unlink(folder_ / kRun);
  if (fs_.list(folder_).empty()) fs_.remove_dir(folder_);
}

}  // namespace megalith::corpus
