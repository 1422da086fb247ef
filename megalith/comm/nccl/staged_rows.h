#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "megalith/comm/row_lists.h"

namespace megalith::comm {

/// Consecutive rows of a staging matrix.
struct StagedRange {
  Index begin = 0, count = 0;
};

/// How one member's row collective is made by messages, where members do not read each other's memory. Each member asks
/// the others for rows, and stages rows in one matrix in this order:
///   given     rows that others ask for, member by member: packed here, sent from here
///   own       rows of its own matrix that its list names
///   received  rows of the others that its list names, member by member
/// A row is staged once, however often the list names it, in the order in which the list first does. This is
/// arithmetic in host memory, with 4 bytes for each row of each member.
class StagedRows {
 public:
  StagedRows(int rank, int members);

  /// Takes this member's list. Its places exist in matrices of `rows` rows, or have kNoMember.
  void ask(std::span<const RowPlace> places, Index rows);
  /// The rows that this member asks each member for, and reads of its own.
  std::span<const std::int32_t> counts() const { return counts_; }
  /// The rows of their own matrices that the own and received rows are, in their order: (0, row).
  std::span<const RowPlace> asked() const { return asked_; }
  /// The list's places as rows of the matrix that begins at the first own row: (0, row). kNoMember stays.
  std::span<const RowPlace> places() const { return places_; }

  /// Takes the counts() of all members, member by member.
  void answer(std::span<const std::int32_t> counts_of_all);
  Index given() const { return given_; }
  /// The given and own rows: those that are copied out of this member's matrix.
  Index packed() const { return given_ + counts_[self_]; }
  Index staged() const { return given_ + static_cast<Index>(asked_.size()); }
  StagedRange given_to(int member) const { return given_to_[static_cast<std::size_t>(member)]; }
  StagedRange received_from(int member) const;

 private:
  std::size_t self_;
  std::vector<std::int32_t> counts_;
  std::vector<Index> begins_;          // of each member's rows among asked_
  std::vector<std::int32_t> numbers_;  // of each row of each member, among those asked of the member; -1: none
  std::vector<RowPlace> asked_, places_;
  std::vector<StagedRange> given_to_;
  Index given_ = 0;
};

}  // namespace megalith::comm
