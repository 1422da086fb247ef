#pragma once
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/comm/threads/thread_world.h"

#include "tests/convert/hf_cases.h"
#include "tests/convert/hf_values.h"
#include "tests/convert/random_model.h"
#include "tests/eval/whole_model.h"

// What tests do with the folders of tests/data/hf: read, write and spoil them.
namespace megalith::convert {

using nlohmann::json;
using support::HfCase;

inline const auto kFs = io::posix_fs();

inline model::ModelConfig padded(model::ModelConfig config) {
  config.padded_vocab_size = model::padded_vocab_size(config.vocab_size, 1);
  return config;
}

/// The parameters of a folder.
inline RandomModel imported(const io::Path& folder, DType dtype = DType::f32) {
  const HfModel hf = read_hf_config(*kFs, folder);
  RandomModel model(padded(hf.config), 3, dtype);
  import_hf(*kFs, folder, hf, model.params);
  return model;
}

/// The greatest difference of the logits after every token from the stored ones.
inline double greatest_difference(const HfCase& one, const io::Path& folder) {
  double most = 0;
  comm::run_ranks(1, [&](comm::World& world) {
    const HfModel hf = read_hf_config(*kFs, folder);
    eval::WholeModel model(padded(hf.config), comm::make_mesh(world, grid::resolve({})), DType::f32);
    import_hf(*kFs, folder, hf, model.params());
    const std::vector<std::int32_t> ids = one.expected.at("ids");
    for (std::size_t n = 1; n <= ids.size(); ++n) {
      const std::vector<double> want = one.expected.at("logits").at(n - 1);
      const std::span<const double> got = model.last_logits(std::span(ids).first(n));
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_TRUE(std::isfinite(got[i]));
        most = std::max(most, std::abs(got[i] - want[i]));
      }
    }
  });
  return most;
}

/// The parameters in all safetensors files of a folder, in f32 ("[2, 3] BYTES" by name), without buffers of numbers.
inline std::map<std::string, std::string> tensors_of(const io::Path& folder) {
  std::map<std::string, std::string> all;
  const HfFiles files(*kFs, folder);
  for (const auto& [name, tensor] : files.tensors()) {
    if (tensor.dtype == DType::i64) continue;
    std::vector<float> values(static_cast<std::size_t>(tensor.shape.numel()));
    copy_to_ours(same("", tensor.shape), tensor.dtype, tensor.bytes, Tensor(values.data(), tensor.shape, DType::f32));
    all[name] = str(tensor.shape, ' ');
    all[name].append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  return all;
}

/// Written and read again, a model has the tensors of its folder, its logits, and the same bytes.
inline void expect_same_when_written(const HfCase& one) {
  const TempDir dir;
  const HfModel hf = read_hf_config(*kFs, one.folder);
  const RandomModel model = imported(one.folder);
  kFs->make_dir(dir / "a");
  kFs->make_dir(dir / "b");
  export_hf(*kFs, dir / "a", values_of(padded(hf.config), model.params), {.end_of_document = 7});
  EXPECT_EQ(tensors_of(dir / "a"), tensors_of(one.folder));
  const RandomModel again = imported(dir / "a");
  EXPECT_EQ(again.all_values(), model.all_values());
  export_hf(*kFs, dir / "b", values_of(padded(read_hf_config(*kFs, dir / "a").config), again.params),
            {.end_of_document = 7});
  for (const char* file : {"config.json", "model.safetensors"})
    EXPECT_EQ(read_all(dir / "b" / file), read_all(dir / "a" / file)) << file;
  EXPECT_LT(greatest_difference(one, dir / "a"), 1e-4);
}

/// A copy of a case's folder that a test may spoil.
class SpoiltFolder : public ::testing::Test {
 protected:
  void copy(const char* name) {
    std::filesystem::remove_all(folder());
    std::filesystem::copy(HfCase(name).folder, folder());
  }
  io::Path folder() const { return dir_ / "hf"; }
  void edit(const char* file, const std::function<void(json&)>& change) {
    json root = json::parse(read_all(folder() / file));
    change(root);
    write_all(folder() / file, root.dump());
  }
  /// Writes model.safetensors again: `change` edits names and values.
  using Tensors = std::map<std::string, std::vector<float>>;
  void rewrite(const std::function<void(Tensors&, std::map<std::string, Shape>&)>& change) {
    Tensors values;
    std::map<std::string, Shape> shapes;
    for (const auto& [name, text] : tensors_of(folder())) {
      shapes[name] = HfFiles(*kFs, folder()).find(name)->shape;
      values[name].resize(static_cast<std::size_t>(shapes[name].numel()));
      std::memcpy(values[name].data(), text.data() + text.size() - values[name].size() * 4, values[name].size() * 4);
    }
    change(values, shapes);
    std::vector<HfFilesWriter::Entry> entries;
    for (const auto& [name, shape] : shapes) entries.push_back({name, shape});
    std::filesystem::remove(folder() / "model.safetensors");
    HfFilesWriter writer(*kFs, folder(), entries);
    for (const auto& [name, shape] : shapes) writer.write(Tensor(values[name].data(), shape, DType::f32));
    writer.finish();
  }
  /// What an import throws; "" for nothing.
  std::string error() {
    return error_of<InputError>([&] { imported(folder()); });
  }
  void expect_error(const std::string& text) {
    const std::string got = error();
    EXPECT_NE(got.find(text), std::string::npos) << got << "\nwanted: " << text;
    EXPECT_TRUE(got.starts_with("[" + folder().string() + "/")) << got;
  }
  TempDir dir_;
};

}  // namespace megalith::convert
