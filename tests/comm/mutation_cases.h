#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/world.h"

#include "tests/support/mutation.h"

namespace megalith::comm {

/// One rank of two makes one call wrongly, in a short program of several: both must end in an error, and no memory but
/// that of the tensors may be written.
struct MutationCase {
  Op op = Op::all_reduce;
  Index count = 0;                     ///< of what the other rank is sent, in f32; all_reduce: of the tensor
  std::optional<Mutation::Kind> kind;  ///< nothing: the culprit's tensors are half as long
  int culprit = 1;
  bool of_threads = false;  ///< at a size at which only rank threads change their ways

  std::string name() const;  ///< "all_reduce_1017_count_rank1"
};

/// Every call that can be mutated, at and above each size at which the transports change their ways.
const std::vector<MutationCase>& mutation_cases();

/// Waits in these cases end after so long.
inline constexpr double kMutationTimeout_s = 0.5;

/// The tensors of one rank. They must live until all ranks have ended: nobody waits for the first of two receives that
/// were posted by mistake, so the other rank may still copy into it when this one has given up.
class MutatedRank {
 public:
  MutatedRank(const MutationCase& mutated, int rank);
  ~MutatedRank();
  /// Throws the error of the call that noticed; InternalError when memory after a tensor was written.
  void run(World& world);

 private:
  struct Memory;

  MutationCase mutated_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace megalith::comm
