#include "megalith/train/gather.h"

#include <algorithm>
#include <limits>

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

std::string share_least_text(comm::World& world, const Finding& mine) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  std::int64_t order = mine.text.empty() ? kNone : mine.order;
  std::vector<std::int64_t> orders(static_cast<std::size_t>(world.size()));
  Exec host;
  comm::all_gather(host, world.all(), Tensor(&order, {1}, DType::i64),
                   Tensor(orders.data(), {world.size()}, DType::i64))
      .wait(host);
  const auto least = std::ranges::min_element(orders);
  return *least == kNone ? std::string() : share_text(world, mine.text, static_cast<int>(least - orders.begin()));
}

}  // namespace megalith::train
