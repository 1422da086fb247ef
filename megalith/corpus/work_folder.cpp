#include "megalith/corpus/work_folder.h"

#include <nlohmann/json.hpp>

#include "megalith/io/json_document.h"

namespace megalith::corpus {
namespace {

constexpr const char* kRun = "run.json";
constexpr std::uint64_t kMagic = 0x314b524f574c474dULL;  // "MGLWORK1"

/// Behind the records of a product.
struct Footer {
  std::uint64_t magic = kMagic, bytes = 0;
  ProductNumbers numbers{};
};

/// The same of input files, [name, size, checksum] each.
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

/// Says where two runs differ.
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
  const io::MappedFile file = fs_.map(run);
  const std::string source = run.string();
  const nlohmann::json here = io::parse_sealed_json(file.text(), {.source = source, .what = "work folder"});
  if (const std::string differs = difference(here, settings); !differs.empty())
    throw CheckpointError(CheckpointError::Kind::refused,
                          str("[", source, "] ", differs,
                              ": the work of another run; give --work another folder, or "
                              "remove this one"));
}

bool WorkFolder::is_one(io::Fs& fs, const io::Path& folder) { return fs.exists(folder / kRun); }

void WorkFolder::remove_leftovers(const std::string& name) {
  for (const std::string& file : fs_.list(folder_))
    if (file == name + kStaged || file.starts_with(name + ".run-")) fs_.unlink(folder_ / file);
}

void WorkFolder::finish(const std::string& name, io::OutputFile& file, std::uint64_t bytes,
                        const ProductNumbers& numbers) {
  const Footer footer{.bytes = bytes, .numbers = numbers};
  file.write(std::as_bytes(std::span(&footer, 1)));
  file.sync();
  file.close();
  fs_.rename(folder_ / (name + kStaged), folder_ / name);
  fs_.sync_dir(folder_);
}

WorkFolder::Product WorkFolder::open(const std::string& name) {
  Product product{.path = folder_ / name};
  const io::MappedFile file = fs_.map(product.path);
  Footer footer{.magic = 0};
  const std::size_t size = file.bytes().size();
  if (size >= sizeof footer) std::memcpy(&footer, file.bytes().data() + (size - sizeof footer), sizeof footer);
  if (footer.magic != kMagic || footer.bytes + sizeof footer != size)
    throw InputError(str("[", product.path.string(), "] is not whole: remove the work folder and start again"));
  product.bytes = footer.bytes;
  product.numbers = footer.numbers;
  return product;
}

void WorkFolder::remove_all() {
  for (const std::string& file : fs_.list(folder_))
    if (file != kRun && !fs_.is_dir(folder_ / file)) fs_.unlink(folder_ / file);
  if (fs_.exists(folder_ / kRun)) fs_.unlink(folder_ / kRun);
  if (fs_.list(folder_).empty()) fs_.remove_dir(folder_);
}

}  // namespace megalith::corpus
