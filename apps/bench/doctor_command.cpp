#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <sys/utsname.h>
#include <unistd.h>

#include "megalith/base/host.h"
#include "megalith/base/host_limits.h"
#include "megalith/base/str.h"
#include "megalith/base/team.h"
#include "megalith/base/text.h"
#include "megalith/base/text_table.h"
#include "megalith/comm/mpi/mpi_world.h"
#include "megalith/comm/nccl/gpus.h"
#include "megalith/comm/nccl/nccl_world.h"
#include "megalith/ops/gemm_chooser.h"
#include "megalith/ops/library.h"
#include "megalith/report/peers_text.h"
#include "megalith/tensor/gpu_code.h"
#include "megalith/tensor/gpu_facts.h"
#include "megalith/train/attention_facts.h"
#include "megalith/train/gemm_cache.h"

#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/version.h"

namespace megalith::apps {
namespace {

struct Finding {
  std::string what, state, note;
};

const char* yes_if(bool holds) { return holds ? "yes" : "no"; }

/// Results of earlier jobs about every kind of GPU here.
void add_gemm_caches(std::vector<Finding>& all, const std::vector<device::Gpu>& gpus) {
  const std::shared_ptr<io::Fs> fs = io::posix_fs();
  const io::Path cache_root = cache_folder();
  std::set<std::string> seen;
  for (const device::Gpu& gpu : gpus) {
    if (!seen.insert(gpu.name).second) continue;
    const train::GemmCache cache(*fs, cache_root, ops::gemm_platform(gpu));
    const std::optional<ops::GemmTable> table = cache.read();
    all.push_back({str("products timed on ", gpu.name), str(table ? table->products.size() : 0),
                   cache_root.empty() ? "kept nowhere: set HOME or XDG_CACHE_HOME" : cache.file().string()});
  }
}

std::string list_of(const std::vector<int>& gpus) { return gpus.empty() ? "none" : joined(gpus, ", "); }

/// Why runs do not use cuDNN; empty if the build has cuDNN and its kernels run.
std::string lack_of_cudnn() {
  config::RunPlan plan;
  plan.device = Device::cuda;
  plan.train.precision = "bf16";
  plan.model.hidden_size = 64;
  plan.model.num_heads = 1;
  plan.model.seq_len = 1024;
  plan.train.micro_batch = 1;
  plan.model.attention_dropout = 0;
  const std::string reason = train::own_attention_reason(plan);
  return reason.empty() && device::num_gpus() > 0 ? train::refused_attention(plan) : reason;
}

/// How GPUs of rank threads, and of ranks that are processes, access the memory of each other.
void add_peers(std::vector<Finding>& all, const std::vector<device::Gpu>& gpus) {
  std::vector<report::PeersOfGpu> peers;
  auto exports = report::Exports::all;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const auto gpu = static_cast<int>(i);
    peers.push_back({gpus[i].reaches.size(), device::linked_gpus(gpu).size()});
    if (!device::exports_memory(gpu)) exports = report::Exports::not_all;
  }
  const report::PeersText threads = report::peers_text(peers, comm::refusal_of_peers());
  all.push_back({"peers", threads.state, threads.note});
  const report::PeersText processes = report::process_peers_text(peers, comm::refusal_of_peers(), exports);
  all.push_back({"peers of processes", processes.state, processes.note});
}

/// The libraries for GPUs and for communication between them.
void add_gpus(std::vector<Finding>& all) {
  const std::vector<device::Gpu> gpus = device::gpus();
  const std::string architectures = device::code_architectures();
  if (gpus.empty()) {
    all.push_back({"GPU", "no",
                   architectures.empty() ? "this build has no CUDA backend: put nvcc on PATH and build again"
                                         : "this build can use one, but the driver shows none"});
  }
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const device::Gpu& gpu = gpus[i];
    std::string note;
    if (!device::has_code_for(gpu.capability, architectures))
      note = str("unusable: ", device::lack_of_code(gpu.capability, architectures), "; ");
    note +=
        str("compute ", gpu.capability, ", ", gpu.multiprocessors, " multiprocessors, ", human_bytes(gpu.memory_bytes));
    if (gpus.size() > 1)
      note += str(", reaches GPU ", list_of(gpu.reaches), "; NVLink or alike to GPU ",
                  list_of(device::linked_gpus(static_cast<int>(i))));
    all.push_back({str("GPU ", i), gpu.name, note});
  }
  if (gpus.size() > 1) add_peers(all, gpus);
  for (const auto& [name, version] : device::driver_versions()) all.push_back({name, version, ""});
  if (!architectures.empty()) all.push_back({"code for GPUs", architectures, "CUDA architectures of this build"});
  add_gemm_caches(all, gpus);
  for (const auto& [name, version] : ops::library_versions())
    all.push_back({name, version, name == "cuDNN" ? lack_of_cudnn() : ""});
  all.push_back({"GPUs between them", yes_if(comm::has_nccl()),
                 comm::has_nccl() ? comm::nccl_version() : "install libnccl-dev and build again: one GPU per job"});
}

std::string memory_text(const HostLimits& limits) {
  if (!limits.memory_available) return "";
  const std::string free = human_bytes(*limits.memory_available) + " free";
  return limits.memory_limit ? str(free, "; control groups grant ", human_bytes(*limits.memory_limit)) : free;
}

std::vector<Finding> findings() {
  utsname system{};
  uname(&system);
  const std::vector<int> cores = allowed_cores();
  const HostLimits limits = host_limits();
  const std::optional<double> quota = limits.cpu_quota;
  const Index memory = static_cast<Index>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  std::vector<Finding> all = {
      {"program", version(), ""},
      {"system", str(system.sysname, " ", system.release, " ", system.machine), ""},
      {"cores allowed", str(cores.size()), "by the affinity mask: " + stretches(cores)},
      {"CPU quota", quota ? str(*quota) : "none",
       quota ? "cores' worth of time, the least that a control group grants" : "control groups grant all of it"},
      {"threads in a rank", str(usable_cores()), "of a run of one rank; device.threads sets another number"},
      {"memory", human_bytes(memory), memory_text(limits)},
      {"AVX2", yes_if(__builtin_cpu_supports("avx2") != 0), ""},
      {"AVX-512", yes_if(__builtin_cpu_supports("avx512f") != 0), ""},
      {"ranks as threads", "yes", ""},
      {"ranks as processes", yes_if(comm::has_mpi()),
       comm::has_mpi() ? comm::mpi_version() : "install OpenMPI's headers (libopenmpi-dev) and build again"},
  };
  if (const std::string library = ops::cpu_product_library(); !library.empty())
    all.push_back({"f32 products", library, ""});
  else
    all.push_back({"f32 products", "own loops", "several times slower: install libdnnl-dev and build again"});
  if (const std::string unit = ops::cpu_bf16_unit(); !unit.empty())
    all.push_back({"bf16 products", unit, "train.precision = 'bf16' is faster than 'fp32' here"});
  else
    all.push_back({"bf16 products", "widened to f32", "no faster than fp32: this CPU or build does not multiply bf16"});
  add_gpus(all);
  return all;
}

void run_doctor(const std::string& format) {
  if (format == "json") {
    nlohmann::ordered_json out;
    for (const Finding& one : findings()) {
      out[one.what]["state"] = one.state;
      if (!one.note.empty()) out[one.what]["note"] = one.note;
    }
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  for (const Finding& one : findings())
    std::printf("%-20s %-10s %s\n", one.what.c_str(), one.state.c_str(), one.note.c_str());
}

}  // namespace

void add_doctor(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("doctor", "Print what this machine has, what was built in and what is missing");
  const auto format = std::make_shared<std::string>("text");
  command->add_option("--format", *format, "text or json")->check(CLI::IsMember({"text", "json"}));
  command->callback([format] { run_doctor(*format); });
}

}  // namespace megalith::apps
