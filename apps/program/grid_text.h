#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megalith/config/run_config.h"

namespace megalith::apps {

/// The form of a grid on the command line, for help texts.
inline constexpr const char* kGridForm =
    "\"tp=2 pp=2 dp=2\": keys of [parallel] (also ranks, ep, etp, chunks, group_size, order, sequence_parallel), "
    "dp instead of ranks, and distributed (optimizer.distributed); \"one\" or no key: one rank";

/// The recipe on another grid: what [parallel] has on ranks and their division is the text's, and nothing of the
/// recipe's; optimizer.distributed is the text's if that has it. `option` is for messages. Throws ConfigError with
/// every word that is no key=value of a grid.
config::RunConfig on_grid(config::RunConfig recipe, std::string_view option, std::string_view text);

}  // namespace megalith::apps
