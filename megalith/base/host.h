#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace megalith {

/// The name of the machine that this process runs on; "unknown" where the system has none.
std::string host_name();
/// The same for all processes that share this machine's memory and clock, until it restarts.
std::uint64_t host_id();
/// A random number above 0, which no other process of a job draws: also in containers, where names of hosts and numbers
/// of processes may be equal.
std::uint64_t random_word();
/// Numbers of the cores that this process may run on (its affinity mask); where there are more than the mask has bits,
/// those of all.
std::vector<int> allowed_cores();

}  // namespace megalith
