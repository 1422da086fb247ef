#include "megalith/checkpoint/manifest.h"

#include <algorithm>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/io/reader.h"
#include "megalith/io/save_protocol.h"

namespace megalith::checkpoint {
namespace {

/// Records of any kind with a `name`, sorted by it.
template <class Record>
const Record* find_by_name(const std::vector<Record>& records, std::string_view name) {
  const auto found =
      std::lower_bound(records.begin(), records.end(), name,
                       [](const Record& record, std::string_view wanted) { return record.name < wanted; });
  return found != records.end() && found->name == name ? &*found : nullptr;
}

template <class Record>
const Record* first_unsorted(const std::vector<Record>& records) {
  const auto found = std::adjacent_find(records.begin(), records.end(),
                                        [](const Record& a, const Record& b) { return a.name >= b.name; });
  return found != records.end() ? &*std::next(found) : nullptr;
}

std::string describe(const ShardSlice& slice) {
  std::string offset;
  for (int i = 0; i < slice.box.shape.rank(); ++i) {
    offset += str(i > 0 ? ", " : "", slice.box.offset[static_cast<std::size_t>(i)]);
  }
  return str("the slice at [", offset, "] of ", slice.box.shape, " in ", slice.file);
}

/// The dimension along which the slices begin at the most places: sweeping it meets few slices at a time.
int sweep_dimension(const TensorRecord& tensor) {
  int best = 0;
  std::size_t most = 0;
  for (int i = 0; i < tensor.shape.rank(); ++i) {
    std::set<Index> offsets;
    for (const ShardSlice& slice : tensor.slices) offsets.insert(slice.box.offset[static_cast<std::size_t>(i)]);
    if (offsets.size() > most) best = i;
    most = std::max(most, offsets.size());
  }
  return best;
}

/// Two slices that share elements, described; "" when there are none.
std::string find_overlap(const TensorRecord& tensor) {
  const int dim = sweep_dimension(tensor);
  const auto begin_of = [dim](const ShardSlice* slice) { return slice->box.offset[static_cast<std::size_t>(dim)]; };
  std::vector<const ShardSlice*> order, active;
  for (const ShardSlice& slice : tensor.slices) order.push_back(&slice);
  std::sort(order.begin(), order.end(), [&](const auto* a, const auto* b) { return begin_of(a) < begin_of(b); });
  for (const ShardSlice* slice : order) {
    std::erase_if(active, [&](const ShardSlice* other) {
      return tensor.shape.rank() > 0 && begin_of(other) + other->box.shape[dim] <= begin_of(slice);
    });
    for (const ShardSlice* other : active) {
      if (intersect(slice->box, other->box)) return describe(*other) + " overlaps " + describe(*slice);
    }
    active.push_back(slice);
  }
  return "";
}

/// Slices inside the tensor, that do not overlap and have as many elements as it, cover it exactly.
std::string cover_problem(const Manifest& manifest, const TensorRecord& tensor) {
  const std::optional<Index> total = tensor.shape.checked_numel();
  Index bytes = 0;
  if (!total || __builtin_mul_overflow(*total, size_of(tensor.dtype), &bytes)) {
    return str("shape ", tensor.shape, " has too many elements");
  }
  Index covered = 0;
  for (const ShardSlice& slice : tensor.slices) {
    if (manifest.find_file(slice.file) == nullptr) return describe(slice) + ": the file is not listed";
    if (!is_inside(slice.box, tensor.shape)) return str(describe(slice), " leaves the tensor's shape ", tensor.shape);
    if (__builtin_add_overflow(covered, slice.box.shape.numel(), &covered)) return "the slices overlap";
  }
  if (std::string overlap = find_overlap(tensor); !overlap.empty()) return overlap;
  if (covered != *total) return str("the slices hold ", covered, " of ", *total, " elements");
  return "";
}

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

}  // namespace

const TensorRecord* Manifest::find(std::string_view name) const { return find_by_name(tensors, name); }
const FileRecord* Manifest::find_file(std::string_view name) const { return find_by_name(files, name); }

Index Manifest::bytes() const {
  Index total = 0;
  for (const FileRecord& file : files) total += static_cast<Index>(file.checksums.bytes);
  return total;
}

Digest128 digest_of(const RunState& run) {
  StateDigest digest;
  digest.add_integer("step", run.step);
  for (const auto& [name, value] : run.integers) digest.add_integer("integers." + name, value);
  for (const auto& [name, value] : run.reals) digest.add_real("reals." + name, value);
  return digest.value();
}

bool is_plain(const FileRecord& file) {
  return std::ranges::find(io::kPlainFileNames, file.name) != io::kPlainFileNames.end();
}

std::string problem_of(const Manifest& manifest) {
  if (manifest.run.step < 0) return str("step = ", manifest.run.step, ": must not be negative");
  if (const FileRecord* file = first_unsorted(manifest.files)) {
    return str("file ", io::printable(file->name), ": is there twice or out of order");
  }
  for (const FileRecord& file : manifest.files) {
    if (!is_plain_file_name(file.name))
      return str("file ", io::printable(file.name), ": must be a name without a path");
    const std::uint64_t blocks =
        file.checksums.bytes / io::kChecksumBlockBytes + (file.checksums.bytes % io::kChecksumBlockBytes > 0 ? 1 : 0);
    if (file.checksums.blocks.size() != blocks) {
      return str("file ", io::printable(file.name), ": ", file.checksums.bytes, " bytes need ", blocks,
                 " block checksums, there are ", file.checksums.blocks.size());
    }
  }
  if (const TensorRecord* tensor = first_unsorted(manifest.tensors)) {
    return str("tensor \"", io::printable(tensor->name), "\": is there twice or out of order");
  }
  for (const TensorRecord& tensor : manifest.tensors) {
    const std::string problem = cover_problem(manifest, tensor);
    if (!problem.empty()) return str("tensor \"", io::printable(tensor.name), "\": ", problem);
  }
  return "";
}

Manifest build_manifest(const RunState& run, std::span<const ShardReport> reports) {
  Manifest manifest{.run = run, .digest = digest_of(run), .tensors = {}, .files = {}};
  std::map<std::string_view, TensorRecord> tensors;
  for (const ShardReport& report : reports) {
    manifest.digest += report.digest;
    manifest.files.push_back(report.file);
    for (const ShardReport::Piece& piece : report.pieces) {
      const TensorRecord first{piece.slice.name, piece.dtype, piece.slice.global, {}};
      TensorRecord& tensor = tensors.try_emplace(piece.slice.name, first).first->second;
      if (tensor.dtype != piece.dtype || tensor.shape != piece.slice.global) {
        throw InternalError(str("[manifest] tensor \"", tensor.name, "\": ", report.file.name, " says ",
                                name_of(piece.dtype), ' ', piece.slice.global, ", another rank ", name_of(tensor.dtype),
                                ' ', tensor.shape));
      }
      tensor.slices.push_back({report.file.name, piece.entry, box_of(piece.slice)});
    }
  }
  for (auto& [name, tensor] : tensors) manifest.tensors.push_back(std::move(tensor));
  std::sort(manifest.files.begin(), manifest.files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  const std::string problem = problem_of(manifest);
  if (!problem.empty()) throw InternalError("[manifest] " + problem);
  return manifest;
}

}  // namespace megalith::checkpoint
