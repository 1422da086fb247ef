#pragma once
#include <span>
#include <vector>

namespace megalith::pipeline {

/// Which static input buffer each captured layer of each forward uses.
struct StaticSlots {
  /// [i][layer]: buffer of that layer in the i-th forward of the order; empty for a chunk without captured layers.
  std::vector<std::vector<int>> slot;
  /// [buffer]: the signature it was made for. Its size is the number of buffers.
  std::vector<int> signature;
};

/// Assigns buffers along an order list. A forward takes one buffer for each captured layer of its chunk, from a
/// first-in-first-out free list of its signature, or a fresh one when that is empty. A backward frees the buffers of
/// the chunk's oldest forward. So the number of buffers follows the microbatches in flight, never their total. order:
/// signed_order() or capture_order(). signatures[chunk][layer] differs for inputs that cannot share memory (one number
/// per shape, data type and layout; all 0 when layers are alike). Throws InternalError when an entry names no chunk, or
/// a backward comes before its forward.
StaticSlots assign_static_slots(std::span<const int> order, std::span<const std::vector<int>> signatures);

}  // namespace megalith::pipeline
