// Writes what GPUs did to the file that MEGALITH_GPU_RECORDS names: a line a kernel, copy or fill, with the number of
// the graph that it is a node of, 0 for none. A library that CUDA loads into any program by itself:
//   CUDA_INJECTION64_PATH=build/cuda-release/bin/libgpu_records.so MEGALITH_GPU_RECORDS=records.csv megalith bench step
//   ...
// scripts/gpu-idle reads the file. Recording makes hosts slower, GPUs hardly. Programs of several processes must give
// each a file of its own.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include <cupti.h>
#include <cxxabi.h>

namespace {

constexpr std::size_t kBufferBytes = std::size_t{8} << 20, kAlignment = 8;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::unique_ptr<std::FILE, CloseFile> records;
std::mutex writing;                // the buffers of several GPUs
std::atomic<bool> complete{true};  // nothing is missing; buffers are asked for and given back by several threads

std::string demangled(const char* name) {
  if (name == nullptr) return "unknown";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

template <class Record>
void write(const Record& record, const std::string& name) {
  std::fprintf(records.get(), "%u,%u,%llu,%llu,%u,%s\n", record.deviceId, record.streamId,
               static_cast<unsigned long long>(record.start), static_cast<unsigned long long>(record.end),
               record.graphId, name.c_str());
}

/// Those to and from the host by names of their own, for scripts/gpu-idle.
const char* name_of_copy(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy from the host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy to the host";
    default:
      return "copy";
  }
}

void write(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(record);
      return write(kernel, demangled(kernel.name));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      return write(copy, name_of_copy(copy.copyKind));
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return write(reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record), "copy between GPUs");
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return write(reinterpret_cast<const CUpti_ActivityMemset4&>(record), "fill");
    default:
      return;
  }
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(kAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  if (*buffer == nullptr) complete = false;
  *max_records = 0;  // as many as it holds
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t bytes) {
  const std::scoped_lock lock(writing);
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) != CUPTI_SUCCESS || dropped > 0) complete = false;
  for (CUpti_Activity* record = nullptr; cuptiActivityGetNextRecord(buffer, bytes, &record) == CUPTI_SUCCESS;)
    write(*record);
  std::free(buffer);
}

/// The last line states that no record is missing.
void finish() {
  if (cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED) != CUPTI_SUCCESS) complete = false;
  const std::scoped_lock lock(writing);
  if (complete && std::ferror(records.get()) == 0) std::fputs("complete\n", records.get());
}

bool start() {
  const char* path = std::getenv("MEGALITH_GPU_RECORDS");
  if (path == nullptr) return false;
  records.reset(std::fopen(path, "w"));
  if (records == nullptr) return false;
  std::fputs("gpu,stream,begin_ns,end_ns,graph,name\n", records.get());
  constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                           CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};
  return std::ranges::all_of(kKinds, [](auto kind) { return cuptiActivityEnable(kind) == CUPTI_SUCCESS; }) &&
         cuptiActivityRegisterCallbacks(give_buffer, take_buffer) == CUPTI_SUCCESS && std::atexit(finish) == 0;
}

}  // namespace

/// CUDA calls it when it starts; 0: it does not want the library.
extern "C" int InitializeInjection() {
  if (start()) return 1;
  std::fputs("gpu_records: MEGALITH_GPU_RECORDS must name a file that can be written, and CUPTI must be free\n",
             stderr);
  return 0;
}
