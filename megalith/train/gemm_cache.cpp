#include "megalith/train/gemm_cache.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/io/run_lock.h"
#include "megalith/io/save_protocol.h"

namespace megalith::train {
namespace {

/// A name as a file has it: letters, digits and points stay, the rest becomes '-'.
std::string as_file_name(std::string name) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.';
  };
  std::ranges::replace_if(
      name, [&](char c) { return !is_plain(c); }, '-');
  return name;
}

}  // namespace

GemmCache::GemmCache(io::Fs& fs, const io::Path& root, const ops::GemmPlatform& platform)
    : fs_(fs), platform_(platform) {
  if (root.empty()) return;
  folder_ = root / "gemm";
  file_ = folder_ / as_file_name(platform.gpu + "-" + platform.library + ".json");
}

ops::GemmTable GemmCache::load() const { return ops::parse_gemm_table(fs_.map(file_).text(), file_.string()); }

std::optional<ops::GemmTable> GemmCache::read() const {
  try {
    if (folder_.empty() || !fs_.exists(file_)) return std::nullopt;
    return load();
  } catch (const Error& error) {
    log::warning(str("the cache of GEMM algorithms is ignored: ", error.what()));
    return std::nullopt;
  }
}

void GemmCache::add(const ops::GemmTable& timed) const {
  if (folder_.empty() || timed.empty()) return;
  try {
    const io::RunLock lock = io::RunLock::take(folder_);
    io::clean_temporaries(fs_, folder_, lock);
    ops::GemmTable merged{.platform = platform_, .products = {}};
    try {
      if (fs_.exists(file_)) {
        ops::GemmTable there = load();
        if (there.platform == platform_) merged = std::move(there);
      }
    } catch (const InputError&) {  // read() has warned of it; now it is replaced
    }
    for (const auto& [problem, algorithm] : timed.products) merged.products[problem] = algorithm;
    io::publish_file(fs_, file_, ops::gemm_table_text(merged));
  } catch (const IoError& error) {
    log::info(str("the GEMM algorithms of this job are not cached for later ones: ", error.what()));
  }
}

}  // namespace megalith::train
