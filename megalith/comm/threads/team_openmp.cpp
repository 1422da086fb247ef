#include <omp.h>

#include "megalith/comm/threads/team.h"

namespace megalith::comm {

TeamSize::TeamSize(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
TeamSize::~TeamSize() { omp_set_num_threads(before_); }

}  // namespace megalith::comm
