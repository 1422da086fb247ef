#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace megalith::report {

/// How many of the other GPUs of a process one GPU reaches, and with how many it has NVLink or alike.
struct PeersOfGpu {
  std::size_t reached = 0, linked = 0;
};
/// What `megalith doctor` prints of them between threads: "yes", "some" or "no", and why.
struct PeersText {
  std::string state, note;
};
/// `refusal`: why no GPU may reach another (comm::refusal_of_peers); empty where they may.
PeersText peers_text(std::span<const PeersOfGpu> gpus, const std::string& refusal);
/// The same between processes of this host. Memory is shared where all GPUs can export it.
enum class Exports : std::uint8_t { all, not_all };
PeersText process_peers_text(std::span<const PeersOfGpu> gpus, const std::string& refusal, Exports exports);

}  // namespace megalith::report
