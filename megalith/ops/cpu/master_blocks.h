#pragma once
#include "megalith/tensor/master_values.h"

namespace megalith::ops::cpu {

/// Elements of the blocks in which update_masters() goes over split masters: 4 KiB of f32.
inline constexpr Index kMasterBlock = 1024;

/// values [count] = the split masters [begin, begin + count).
void join_block(const MasterValues& masters, Index begin, Index count, float* values);
/// The inverse. Threads may write neighbouring elements at the same time.
void split_block(const float* values, const MasterValues& masters, Index begin, Index count);

/// Calls update(values, first, count) for consecutive blocks of the masters [begin, end). `values` [count] are the
/// masters from `first` on; the update changes them in place. T is float or double, the dtype of the masters. A copy of
/// split masters is written, too; one of whole masters is not.
template <class T, class Update>
void update_masters(const MasterValues& masters, Index begin, Index end, const Update& update) {
  if (!masters.is_split()) return update(masters.whole.data<T>() + begin, begin, end - begin);
  if constexpr (sizeof(T) == sizeof(float)) {
    float values[kMasterBlock];
    for (Index first = begin; first < end; first += kMasterBlock) {
      const Index count = end - first < kMasterBlock ? end - first : kMasterBlock;
      join_block(masters, first, count, values);
      update(values, first, count);
      split_block(values, masters, first, count);
    }
  }
}

}  // namespace megalith::ops::cpu
