#include "megalith/convert/hf_files.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/json_reader.h"
#include "megalith/io/reader.h"

namespace megalith::convert {
namespace {

constexpr const char* kOnlyFile = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

}  // namespace

HfFiles::HfFiles(io::Fs& fs, const io::Path& folder) {
  if (fs.exists(folder / kIndex)) {
    read_index(fs, folder);
    return;
  }
  where_ = (folder / kOnlyFile).string();
  add(where_, fs.map(where_));
}

void HfFiles::add(const std::string& file, const io::MappedFile& contents) {
  mapped_.push_back(contents);
  for (const checkpoint::TensorInfo& info : checkpoint::parse_safetensors(contents.bytes(), file).tensors) {
    const auto bytes = contents.bytes().subspan(info.begin, info.end - info.begin);
    const auto [place, is_new] = tensors_.try_emplace(info.name, HfFileTensor{file, info.dtype, info.shape, bytes});
    if (!is_new) {
      throw InputError(
          str("[", file, "] tensor \"", io::printable(info.name), "\": ", place->second.file, " holds it, too"));
    }
  }
}

void HfFiles::read_index(io::Fs& fs, const io::Path& folder) {
  where_ = (folder / kIndex).string();
  const nlohmann::json root = io::read_json(fs.map(where_).text(), {.name = where_});
  const auto weight_map = root.is_object() ? root.find("weight_map") : root.end();
  if (weight_map == root.end() || !weight_map->is_object())
    throw InputError(str("[", where_, "] weight_map: must be an object with the file of each tensor"));
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map->items()) {
    const auto fail = [&, &tensor = tensor, &file = file](std::string_view rule) {
      throw InputError(
          str("[", where_, "] weight_map.", io::printable(tensor), " = ", io::printable(file.dump()), ": ", rule));
    };
    const bool is_name = file.is_string() && io::Path(file.get<std::string>()).filename() == file.get<std::string>() &&
                         file.get<std::string>().ends_with(".safetensors");
    if (!is_name) fail("must be the name of a *.safetensors file in this folder");
    if (names.insert(file.get<std::string>()).second && !fs.exists(folder / file.get<std::string>()))
      fail("there is no such file");
  }
  for (const std::string& name : fs.list(folder)) {
    if (name.ends_with(".safetensors") && !name.starts_with("consolidated") && !names.contains(name))
      throw InputError(str("[", (folder / name).string(), "] the index ", kIndex, " does not name this file"));
  }
  for (const std::string& name : names) add((folder / name).string(), fs.map(folder / name));
  for (const auto& [tensor, file] : weight_map->items()) {
    const std::string wanted = (folder / file.get<std::string>()).string();
    const HfFileTensor* const found = find(tensor);
    if (found == nullptr || found->file != wanted) {
      throw InputError(
          str("[", wanted, "] tensor \"", io::printable(tensor), "\" is missing: ", kIndex, " names this file for it"));
    }
  }
  for (const auto& [tensor, found] : tensors_) {
    if (!weight_map->contains(tensor))
      throw InputError(str("[", found.file, "] tensor \"", io::printable(tensor), "\": ", kIndex, " does not name it"));
  }
}

const HfFileTensor* HfFiles::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

HfFilesWriter::HfFilesWriter(io::Fs& fs, io::Path folder, std::vector<Entry> entries, Index max_file_bytes)
    : fs_(fs), folder_(std::move(folder)), entries_(std::move(entries)) {
  Index bytes = 0;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Index more = bytes_of(entries_[i].shape, DType::f32);
    if (files_.empty() || (bytes > 0 && bytes + more > max_file_bytes)) {
      files_.push_back({.name = {}, .begin = i, .end = i});
      bytes = 0;
    }
    files_.back().end = i + 1;
    bytes += more;
  }
  for (std::size_t i = 0; i < files_.size(); ++i) {
    std::array<char, 64> name{};
    std::snprintf(name.data(), name.size(), "model-%05zu-of-%05zu.safetensors", i + 1, files_.size());
    files_[i].name = files_.size() == 1 ? kOnlyFile : name.data();
  }
}

void HfFilesWriter::open(const File& file) {
  std::vector<checkpoint::SafeTensorsWriter::Entry> entries;
  for (std::size_t i = file.begin; i < file.end; ++i)
    entries.push_back({entries_[i].name, DType::f32, entries_[i].shape});
  writer_ = std::make_unique<checkpoint::SafeTensorsWriter>(fs_, folder_ / file.name, std::move(entries),
                                                            checkpoint::SafeTensorsWriter::Metadata{{"format", "pt"}});
}

void HfFilesWriter::write(const Tensor& values) {
  if (!writer_) open(files_.at(file_));
  writer_->write(values);
  if (++next_ < files_[file_].end) return;
  writer_->finish();
  writer_.reset();
  ++file_;
}

void HfFilesWriter::finish() {
  if (next_ != entries_.size()) throw InternalError("[HfFilesWriter] finish() before the last entry");
  if (files_.size() < 2) return;
  nlohmann::ordered_json weight_map;
  Index bytes = 0;
  for (const File& file : files_) {
    for (std::size_t i = file.begin; i < file.end; ++i) {
      weight_map[entries_[i].name] = file.name;
      bytes += bytes_of(entries_[i].shape, DType::f32);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}};
  io::write_file(fs_, folder_ / kIndex, index.dump(2) + "\n");
}

}  // namespace megalith::convert
