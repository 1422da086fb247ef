// Parquet: megalith/data/parquet_file.h. Every byte of every value is looked at, rows ascend, and a second reading
// gives the same.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "megalith/data/parquet_file.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/one_file.h"
#include "tests/test_data.h"

namespace megalith::fuzz {
namespace {

struct Sum {
  std::uint64_t values = 0, bytes = 0, hash = 0, last_row = 0;
  bool operator==(const Sum&) const = default;
};

Sum sum_of(io::Fs& fs, const io::Path& path) {
  constexpr std::uint64_t kMaxValues = std::uint64_t{1} << 20;  // a few bytes may stand for many
  data::ParquetFile file(fs, path, "text");
  Sum sum;
  while (sum.values < kMaxValues) {
    const auto page = file.next();
    if (!page) break;
    if (page->values.size() != page->rows.size()) throw BrokenPromise("a value without a row");
    const std::size_t looked_at = std::min<std::size_t>(page->values.size(), 4096);
    for (std::size_t i = 0; i < page->values.size(); ++i) {
      if (page->rows[i] <= sum.last_row) throw BrokenPromise("rows do not ascend");
      sum.last_row = page->rows[i];
      sum.bytes += page->values[i].size();
      if (i >= looked_at) continue;
      for (const char c : page->values[i].substr(0, 4096)) sum.hash = sum.hash * 31 + static_cast<unsigned char>(c);
      if (!page->values[i].empty()) sum.hash += static_cast<unsigned char>(page->values[i].back());
    }
    sum.values += page->values.size();
  }
  return sum;
}

}  // namespace

bool read_parquet(std::string_view input) {
  const io::Path path = "/folder/file.parquet";
  OneFile fs(path, input);
  Sum first;
  try {
    first = sum_of(fs, path);
  } catch (const InputError&) {
    return false;
  }
  try {
    if (sum_of(fs, path) != first) throw BrokenPromise("a second reading differs");
  } catch (const InputError&) {
    throw BrokenPromise("a second reading is refused");
  }
  return true;
}

std::vector<std::string> parquet_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"plain", "required", "none_v1", "none_v2", "snappy_v1", "snappy_v2", "gzip_v1", "gzip_v2",
                           "zstd_v1", "zstd_v2", "pages", "delta_length_byte_array", "delta_byte_array"}) {
    std::ifstream in(std::string(MEGALITH_TEST_DATA "/parquet/") + name + ".parquet", std::ios::binary);
    std::ostringstream all;
    all << in.rdbuf();
    if (all.str().empty()) throw std::runtime_error(std::string("no seed ") + name);
    seeds.push_back(all.str());
  }
  return seeds;
}

}  // namespace megalith::fuzz
