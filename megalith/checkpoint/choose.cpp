#include "megalith/checkpoint/choose.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/checkpoint/verify.h"

namespace megalith::checkpoint {
namespace {

template <class Look>
bool is_valid(Look&& look) {
  try {
    return look();
  } catch (const InputError&) {
    return false;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace

Choice find_newest_valid(io::Fs& fs, const io::Path& root, OnCorrupt on_corrupt, std::span<const Rejected> unusable) {
  std::vector<Rejected> rejected;
  for (const io::StepFolder& folder : io::published(fs, root)) {
    const auto known =
        std::find_if(unusable.begin(), unusable.end(), [&](const auto& r) { return r.folder == folder; });
    if (known != unusable.end()) {
      rejected.push_back(*known);
    } else {
      try {
        const CheckpointReader reader(fs, root / folder.name());
        return {folder, std::move(rejected)};
      } catch (const Error& error) {
        if (on_corrupt == OnCorrupt::fail) throw;
        rejected.push_back({folder, error.what()});
      }
    }
    if (on_corrupt == OnCorrupt::fail) throw InputError(rejected.back().reason);
  }
  std::string text = str("[", root.string(), "] there is no valid checkpoint");
  for (const Rejected& one : rejected) text += str("\n  ", one.folder.name(), ": ", one.reason);
  throw CheckpointError(CheckpointError::Kind::none_valid, text);
}

Pruned prune(io::Fs& fs, const io::Path& root, int keep) {
  Pruned pruned;
  int valid = 0;
  for (const io::StepFolder& folder : io::published(fs, root)) {
    const io::Path path = root / folder.name();
    const auto all_bytes = [&] { return verify(fs, path).problems.empty(); };
    const auto sizes = [&] {
      const CheckpointReader reader(fs, path);
      return true;
    };
    if (valid < std::max(keep, 2)) {
      valid += (valid == 0 ? is_valid(all_bytes) : is_valid(sizes)) ? 1 : 0;
    } else if (io::remove_published(fs, root, folder).empty()) {
      pruned.removed.push_back(folder);
    } else {
      pruned.kept_foreign.push_back(folder);
    }
  }
  return pruned;
}

}  // namespace megalith::checkpoint
