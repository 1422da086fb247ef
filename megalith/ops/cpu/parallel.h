#pragma once
#include "megalith/base/team.h"
#include "megalith/base/types.h"

namespace megalith::ops::cpu {

/// Below this many elements an op runs on the calling thread. Waking a team costs about as much as 2 us of work.
inline constexpr Index kParallelElements = 16384;
/// Flat element-wise loops are cut into pieces of this many elements (32 KiB of f32: three streams fit the L2 cache).
inline constexpr Index kPiece = 8192;

/// Calls task(i) for i in [0, tasks), on the team (base/team.h) when `elements` is worth it. Results do not depend on
/// which thread runs a task or on the number of threads. Tasks write to places of their own, and their parts are summed
/// in order. Throws what a task throws.
template <class Task>
void parallel_for(Index tasks, Index elements, const Task& task) {
  if (elements >= kParallelElements) return share(tasks, task);
  for (Index i = 0; i < tasks; ++i) task(i);
}

/// Calls piece(begin, count) for consecutive pieces of `size` that cover [0, n).
template <class Piece>
void parallel_pieces(Index n, Index size, Index elements, const Piece& piece) {
  parallel_for(ceil_div(n, size), elements, [&](Index i) {
    const Index begin = i * size;
    piece(begin, n - begin < size ? n - begin : size);
  });
}

/// Rows of `columns` elements, in pieces of about kPiece elements.
template <class Piece>
void parallel_rows(Index rows, Index columns, const Piece& piece) {
  const Index size = columns >= kPiece || columns == 0 ? 1 : kPiece / columns;
  parallel_pieces(rows, size, rows * columns, piece);
}

}  // namespace megalith::ops::cpu
