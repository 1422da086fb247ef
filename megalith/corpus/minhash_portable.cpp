#include "megalith/corpus/minhash.h"

// One build of isa/ for processors other than x86-64, in the compiler's generic vectors of 16 bytes.
namespace megalith::corpus {

namespace isa_baseline {
void minhash(const MinHashWork& work);
}

std::vector<NamedKernel> minhash_kernels() { return {{"baseline", isa_baseline::minhash}}; }

}  // namespace megalith::corpus
