#include "megalith/tensor/gpu_facts.h"

namespace megalith::device {

std::vector<int> linked_gpus(int) { return {}; }
bool exports_memory(int) { return false; }
std::vector<std::pair<std::string, std::string>> driver_versions() { return {}; }
std::string code_architectures() { return {}; }

}  // namespace megalith::device
