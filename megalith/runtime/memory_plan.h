#pragma once
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/tensor/memory.h"

namespace megalith {

/// Owners in ledgers: activations that slots keep from a forward pass to its backward, and scratch.
inline constexpr const char* kActivationsOwner = "activations";
inline constexpr const char* kScratchOwner = "scratch";

/// The record of a pass: tensors in the order in which they were requested, ops in the order in which they ran. Phases
/// (forward, backward) share tensors: one that is made in phase 0 and read in phase 1 must survive in between.
class Recording {
 public:
  struct TensorRecord {
    Index bytes = 0;
    int phase = 0;                          ///< in which it was made
    int first = 0;                          ///< number of the first op that may access it
    int last = -1;                          ///< number of the last op that accesses it
    int last_phase = 0;                     ///< phase of that op
    const char* maker = "";                 ///< name of the first op that writes it
    int made = -1;                          ///< number of that op
    Index layer = -1;                       ///< number of the model's layer in which the tensor was requested; -1: none
    const char* owner = kActivationsOwner;  ///< if it is saved
  };
  struct OpRecord {
    const char* name = "";
    int phase = 0;
    std::vector<TensorId> reads, writes;
  };

  void begin_phase() { ++phase_; }
  TensorId add_tensor(Index bytes, Index layer, const char* owner = kActivationsOwner);
  /// `scratch`: OpInfo::scratch, planned like an output of the op.
  void add_op(const char* name, std::initializer_list<Tensor> reads, std::initializer_list<Tensor> writes,
              const Tensor& scratch = {});

  int num_phases() const { return phase_ + 1; }
  const std::vector<TensorRecord>& tensors() const { return tensors_; }
  const std::vector<OpRecord>& ops() const { return ops_; }

 private:
  void touch(const Tensor& tensor);

  int phase_ = -1;
  std::vector<TensorRecord> tensors_;
  std::vector<OpRecord> ops_;
};

/// The region in which a tensor of a phase lies. `saved`: the slot of its microbatch, from its phase to a later one.
/// `scratch`: memory that the next phase may overwrite.
enum class Region : std::uint8_t { saved, scratch };

struct Allocation {
  Region region = Region::scratch;
  Index offset = 0;
  Index bytes = 0;
  int first = 0, last = 0;  ///< ops between which it is alive
  const char* maker = "";
  int made = -1;  ///< op from which on it has contents
  Index layer = -1;
  const char* owner = kActivationsOwner;
};

/// The allocations of one phase, in the order in which its code requests tensors, and the ops that it runs.
struct PhasePlan {
  std::vector<Allocation> tensors;
  std::vector<const char*> ops;
};

/// Addresses for all memory of a recorded pass. The plan is data: `megalith plan` prints it, and tests check it for
/// overlap.
struct MemoryPlan {
  std::vector<PhasePlan> phases;
  Index saved_bytes = 0;    ///< size of one slot
  Index scratch_bytes = 0;  ///< the largest need of any phase
  Index alive_bytes = 0;    ///< the part of scratch that tensors hold at the op where they hold most; the rest is
                            ///< fragmentation
  /// The part of saved_bytes that is planned under an owner.
  Index saved_bytes_of(std::string_view owner) const;
};

/// Places saved tensors one after the other, and scratch tensors by lifetime (greedy by size, into the lowest gap).
MemoryPlan make_plan(const Recording& recording);

/// The rule that makes a plan right: two tensors that are alive at the same op never share a byte. Throws
/// InternalError.
void check_plan(const MemoryPlan& plan);

}  // namespace megalith
