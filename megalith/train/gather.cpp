#include "megalith/train/gather.h"

namespace megalith::train {

std::vector<std::vector<std::byte>> gather_bytes(comm::World& world, std::span<const std::byte> mine) {
  Exec host;
  const comm::Group& all = world.all();
  std::vector<std::byte> bytes(mine.begin(), mine.end());
  auto size = static_cast<std::int64_t>(bytes.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  comm::all_gather(host, all, Tensor(&size, {1}, DType::i64), Tensor(sizes.data(), {world.size()}, DType::i64))
      .wait(host);
  if (world.rank() != 0) {
    if (size > 0) comm::send(host, all, Tensor(bytes.data(), {size}, DType::u8), 0).wait(host);
    return {};
  }
  std::vector<std::vector<std::byte>> everybody{std::move(bytes)};
  for (int rank = 1; rank < world.size(); ++rank) {
    const std::int64_t theirs = sizes[static_cast<std::size_t>(rank)];
    std::vector<std::byte>& into = everybody.emplace_back(static_cast<std::size_t>(theirs));
    if (theirs > 0) comm::recv(host, all, Tensor(into.data(), {theirs}, DType::u8), rank).wait(host);
  }
  return everybody;
}

std::string share_text(comm::World& world, std::string text, int root) {
  Exec host;
  std::uint64_t size = text.size();
  comm::broadcast(host, world.all(), Tensor(&size, {1}, DType::u64), root).wait(host);
  text.resize(size);
  comm::broadcast(host, world.all(), Tensor(text.data(), {static_cast<Index>(size)}, DType::u8), root).wait(host);
  return text;
}

std::string share_first_text(comm::World& world, const std::string& mine) {
  Exec host;
  std::int64_t first = mine.empty() ? world.size() : world.rank();
  comm::all_reduce(host, world.all(), Tensor(&first, {1}, DType::i64), comm::Reduce::min).wait(host);
  return first == world.size() ? std::string() : share_text(world, mine, static_cast<int>(first));
}

}  // namespace megalith::train
