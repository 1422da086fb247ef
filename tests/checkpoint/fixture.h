#pragma once
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "megalith/checkpoint/shard_io.h"
#include "megalith/io/save_protocol.h"

namespace megalith::checkpoint {

/// A global tensor with owned values.
struct Global {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::vector<std::byte> values;

  Tensor tensor() { return {values.data(), shape, dtype}; }
  TensorSlice slice() const { return TensorSlice::whole(name, shape); }
  bool operator==(const Global&) const = default;
};

inline Global random_global(std::string name, DType dtype, const Shape& shape, std::mt19937_64& random) {
  Global made{std::move(name), dtype, shape, {}};
  made.values.resize(static_cast<std::size_t>(shape.numel() * size_of(dtype)));
  for (std::byte& b : made.values) b = static_cast<std::byte>(random());
  return made;
}

/// A small training state with every dtype and rank; its values depend on the seed.
inline std::vector<Global> random_state(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Global> state;
  state.push_back(random_global("embed.weight", DType::f32, {12, 10}, random));
  state.push_back(random_global("layers.0.mlp.up.weight", DType::bf16, {9, 8}, random));
  state.push_back(random_global("layers.0.mlp.up.bias", DType::f32, {17}, random));
  state.push_back(random_global("adam.m/embed.weight", DType::f64, {12, 10}, random));
  state.push_back(random_global("experts", DType::f16, {3, 4, 5}, random));
  state.push_back(random_global("conv", DType::u8, {2, 3, 4, 5}, random));
  state.push_back(random_global("rng", DType::u64, {4}, random));
  state.push_back(random_global("ids", DType::i32, {6, 3}, random));
  state.push_back(random_global("cursor", DType::i64, {}, random));
  return state;
}

/// A part of a global tensor with its own memory.
struct Part {
  TensorSlice slice;
  DType dtype = DType::f32;
  std::vector<std::byte> values;

  Part(const Global& global, const Box& box)
      : slice{global.name, global.shape, box.offset, box.shape}, dtype(global.dtype) {
    values.resize(static_cast<std::size_t>(box.shape.numel() * size_of(dtype)));
  }
  Tensor tensor() { return {values.data(), slice.local, dtype}; }
};

/// The elements of a box, one by one: slow and plain, what everything else is compared with.
inline Part cut(const Global& global, const Box& box) {
  Part part(global, box);
  const auto bytes = static_cast<std::size_t>(size_of(global.dtype));
  for (Index i = 0; i < box.shape.numel(); ++i) {
    Index rest = i, from = 0, stride = 1;
    for (int d = box.shape.rank() - 1; d >= 0; --d) {
      from += (rest % box.shape[d] + box.offset[static_cast<std::size_t>(d)]) * stride;
      rest /= box.shape[d];
      stride *= global.shape[d];
    }
    std::memcpy(&part.values[static_cast<std::size_t>(i) * bytes],
                &global.values[static_cast<std::size_t>(from) * bytes], bytes);
  }
  return part;
}

/// Cuts a shape into a grid of boxes at random places, in up to `dims` of its dimensions.
inline std::vector<Box> random_grid(const Shape& shape, int dims, std::mt19937_64& random) {
  std::vector<Box> boxes = {{{}, shape}};
  for (int d = 0; d < std::min(dims, shape.rank()); ++d) {
    std::vector<Box> finer;
    std::vector<Index> cuts = {0, shape[d]};
    for (int i = 0; i < static_cast<int>(random() % 4); ++i) {
      cuts.push_back(static_cast<Index>(random() % static_cast<std::uint64_t>(shape[d] + 1)));
    }
    std::sort(cuts.begin(), cuts.end());
    for (const Box& box : boxes) {
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        Box part = box;
        part.offset[static_cast<std::size_t>(d)] = cuts[i];
        part.shape.set(d, cuts[i + 1] - cuts[i]);
        if (cuts[i] < cuts[i + 1]) finer.push_back(part);
      }
    }
    boxes = std::move(finer);
  }
  return boxes;
}

/// The parts of a state that each of `ranks` ranks holds, every element once.
inline std::vector<std::vector<Part>> shard_randomly(const std::vector<Global>& state, int ranks,
                                                     std::mt19937_64& random) {
  std::vector<std::vector<Part>> parts(static_cast<std::size_t>(ranks));
  for (const Global& global : state) {
    for (const Box& box : random_grid(global.shape, 2, random)) {
      parts[random() % static_cast<std::uint64_t>(ranks)].push_back(cut(global, box));
    }
  }
  return parts;
}

inline RunState run_state(Index step) {
  return {.step = step,
          .config_hash = "0123abcd",
          .grid = "tp2 pp2",
          .integers = {{"sample", 4096}, {"most negative", INT64_MIN}},
          .reals = {{"loss_scale", 65536.0}, {"tenth", 0.1}, {"never", -std::numeric_limits<double>::infinity()}},
          .texts = {{"recipe.toml", "[train]\nsteps = 10 # \"quoted\" \xc3\xa9\n"}}};
}

inline constexpr std::string_view kVocabulary = "{\"a\": 0}\n";

/// The whole save of a run of several ranks: what a trainer does, one rank after the other.
inline io::StepFolder save_checkpoint(io::Fs& fs, const io::Path& root, Index step,
                                      std::vector<std::vector<Part>> parts) {
  const io::Path staging = io::begin_save(fs, root, step);
  try {
    std::vector<ShardReport> reports;
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      std::vector<NamedPiece> pieces;
      for (Part& part : parts[rank]) pieces.push_back({part.slice, part.tensor()});
      const ShardReport report = write_shard(fs, staging, shard_file_name(static_cast<int>(rank)), pieces);
      reports.push_back(parse_report(serialize_report(report), "report"));  // as if sent to rank 0
    }
    reports.push_back(write_plain_file(fs, staging, "vocab.json", kVocabulary));
    return io::publish(fs, staging, manifest_text(build_manifest(run_state(step), reports)));
  } catch (...) {
    io::abandon(fs, staging);
    throw;
  }
}

inline io::StepFolder save_checkpoint(io::Fs& fs, const io::Path& root, Index step, const std::vector<Global>& state,
                                      int ranks = 2) {
  std::mt19937_64 random(static_cast<std::uint64_t>(step));
  return save_checkpoint(fs, root, step, shard_randomly(state, ranks, random));
}

/// Every tensor whole.
inline std::vector<Global> load_checkpoint(io::Fs& fs, const io::Path& folder) {
  CheckpointReader reader(fs, folder);
  std::vector<Global> state = random_state(0);
  for (Global& global : state) {
    std::fill(global.values.begin(), global.values.end(), std::byte{0xA5});
    reader.read(global.slice(), global.tensor());
  }
  return state;
}

}  // namespace megalith::checkpoint
