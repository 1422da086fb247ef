#include "megalith/comm/threads/team.h"

namespace megalith::comm {

TeamSize::TeamSize(int) {}
TeamSize::~TeamSize() = default;

}  // namespace megalith::comm
