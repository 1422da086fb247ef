#include "megalith/tasks/presets.h"

#include <array>

namespace megalith::tasks {
namespace {

constexpr std::array<Preset, 15> kPresets = {{{Task::mnli, "336m", 128, 1e-5, 10},
                                              {Task::mnli, "1.3b", 128, 1e-5, 10},
                                              {Task::mnli, "3.9b", 128, 1e-5, 10},
                                              {Task::qqp, "336m", 128, 5e-5, 12},
                                              {Task::qqp, "1.3b", 128, 3e-5, 12},
                                              {Task::qqp, "3.9b", 256, 4e-5, 12},
                                              {Task::squad1, "336m", 64, 3e-5, 2},
                                              {Task::squad1, "1.3b", 48, 3e-5, 2},
                                              {Task::squad1, "3.9b", 48, 1e-5, 2},
                                              {Task::squad2, "336m", 48, 3e-5, 2},
                                              {Task::squad2, "1.3b", 64, 3e-5, 2},
                                              {Task::squad2, "3.9b", 48, 1e-5, 2},
                                              {Task::race, "336m", 32, 2e-5, 3},
                                              {Task::race, "1.3b", 16, 1e-5, 3},
                                              {Task::race, "3.9b", 32, 2e-5, 3}}};

}  // namespace

std::span<const Preset> presets() { return kPresets; }

std::optional<Preset> preset_named(Task task, std::string_view size) {
  for (const Preset& preset : kPresets)
    if (preset.task == task && preset.size == size) return preset;
  return std::nullopt;
}

}  // namespace megalith::tasks
