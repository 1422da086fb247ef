#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "megalith/comm/row_lists.h"

namespace megalith::comm {

/// The memory of one group's row collectives, which its members, processes of one host, share: one member's end. A
/// member marks the rows that it wants of each other member. Every member then copies those of its rows that some
/// member wants, a block of columns at a time, into a window that all read. Members meet between the steps (meet()
/// below): the caller waits there for all of them, and then sees what they have written.
///
///   want(), meet(), plan(), then for each block of columns: give(), meet(), read at block_of()
///
/// Marks and windows are double-buffered, by calls and by blocks. So what a member overwrites was read before the last
/// time that all met. Memory: for each member two windows of max(kWindowBytes, 64 * rows) bytes, and 2 * members * rows
/// bits.
class SharedRows {
 public:
  static constexpr Index kWindowBytes = Index{2} << 20;

  /// For matrices of at most `max_rows` rows.
  struct Sizes {
    int members = 0;
    Index max_rows = 0;

    Index words() const { return ceil_div(max_rows, Index{64}); }  ///< marks of one member's rows by another
    Index marks_bytes() const;
    Index window_bytes() const;
    Index bytes() const { return marks_bytes() + 2 * members * window_bytes(); }
  };

  /// `memory`: sizes.bytes(), zeros at first, the same for all members.
  SharedRows(std::shared_ptr<std::byte> memory, const Sizes& sizes, int rank);

  Index max_rows() const { return sizes_.max_rows; }
  /// Begins a call for matrices of `rows` rows, of which this member wants those at `places`. Its own are left out.
  void want(std::span<const RowPlace> places, Index rows);
  /// After all have called want(): what each member gives, and in blocks of how many bytes of a row.
  void plan(Index row_bytes);
  /// Whether any member wants a row of another one. The same on all members.
  bool any() const { return max_given_ > 0; }
  /// The same on all members.
  Index block_bytes() const { return block_bytes_; }
  /// Copies the given rows' bytes from `begin` of this member's matrix into its window. The next block then.
  void give(const std::byte* matrix, Index begin, Index bytes);
  /// Where the block that was given last has the bytes of a row that this member wants.
  const std::byte* block_of(const RowPlace& place) const;

 private:
  /// The rows of one member that others want, as bits, and how many precede each word.
  struct Given {
    std::vector<std::uint64_t> words;
    std::vector<std::int32_t> before;
  };

  std::span<std::uint64_t> marks(int reader, int owner) const;
  std::byte* window(int member) const;

  std::shared_ptr<std::byte> memory_;
  Sizes sizes_;
  int rank_;
  Index words_ = 0;  ///< of this call's rows
  std::uint64_t calls_ = 0, blocks_ = 0;
  Index row_bytes_ = 0, block_bytes_ = 0, given_bytes_ = 0, max_given_ = 0;
  std::vector<Given> given_;        ///< by member
  std::vector<std::int32_t> rows_;  ///< those that this member gives, ascending
};

}  // namespace megalith::comm
