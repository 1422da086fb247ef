#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "megalith/comm/world.h"

namespace megalith::comm {

/// What every transport must do, on worlds of any size. A case throws when it finds something wrong. Run by gtest over
/// threads and GPUs, and by comm_check also under mpirun.
struct TransportCase {
  std::string_view name;
  void (*run)(World& world);
  std::string_view cpu_only = "";  ///< why GPUs cannot do it; empty: they must
};
std::span<const TransportCase> transport_cases();

/// Where the ranks of `world` compute.
Device device_of(const World& world);
/// All ranks, between the memories of device_of(world), with messages.
Group everyone(World& world);

/// A program that uses communication wrongly, and how it must end: with the error of this code, whose text has all of
/// these fragments.
struct MisuseCase {
  std::string_view name;
  int ranks = 2;
  ExitCode code = ExitCode::collective;
  std::vector<std::string_view> fragments;
  void (*run)(World& world) = nullptr;
};
std::span<const MisuseCase> misuse_cases();

/// Waits in the misuse cases end after so long.
inline constexpr double kMisuseTimeout_s = 2;

}  // namespace megalith::comm
