#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/checkpoint/safetensors.h"
#include "megalith/convert/hf_tensor.h"
#include "megalith/io/fs.h"

namespace megalith::convert {

/// A tensor in a file of a folder.
struct HfFileTensor {
  std::string file;  ///< for messages
  DType dtype = DType::f32;
  Shape shape;
  std::span<const std::byte> bytes;  ///< valid as long as the HfFiles
};

/// The tensors of a Hugging Face folder: of model.safetensors or, where there is model.safetensors.index.json, of the
/// files that it names. Files are mapped, and read when a tensor is.
class HfFiles {
 public:
  /// Throws InputError for a file that breaks a rule of its format, that the index names and that is missing or lies
  /// elsewhere, or for a *.safetensors that it does not name (but consolidated*, a model's copy in another layout).
  /// Also for a tensor that is not in the index, or not in the file that it names.
  HfFiles(io::Fs& fs, const io::Path& folder);

  /// By name.
  const std::map<std::string, HfFileTensor, std::less<>>& tensors() const { return tensors_; }
  /// Null if there is none.
  const HfFileTensor* find(std::string_view name) const;
  /// The file of all names: the index, or the only file.
  const std::string& where() const { return where_; }

 private:
  void add(const std::string& file, const io::MappedFile& contents);
  void read_index(io::Fs& fs, const io::Path& folder);

  std::string where_;
  std::vector<io::MappedFile> mapped_;
  std::map<std::string, HfFileTensor, std::less<>> tensors_;
};

/// Writes the tensors of a folder in f32, synced: as model.safetensors or, if they are more than `max_file_bytes`, as
/// several files with an index.
class HfFilesWriter {
 public:
  struct Entry {
    std::string name;
    Shape shape;
  };
  /// As the transformers library cut its files for years.
  static constexpr Index kMaxFileBytes = 5'000'000'000;

  HfFilesWriter(io::Fs& fs, io::Path folder, std::vector<Entry> entries, Index max_file_bytes = kMaxFileBytes);
  /// The next entry.
  void write(const Tensor& values);
  /// After the last entry: syncs, and writes the index if there is one.
  void finish();

 private:
  struct File {
    std::string name;
    std::size_t begin = 0, end = 0;  ///< entries
  };
  void open(const File& file);

  io::Fs& fs_;
  io::Path folder_;
  std::vector<Entry> entries_;
  std::vector<File> files_;
  std::size_t next_ = 0, file_ = 0;
  std::unique_ptr<checkpoint::SafeTensorsWriter> writer_;
};

}  // namespace megalith::convert
