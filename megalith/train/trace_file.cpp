#include "megalith/train/trace_file.h"

#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/train/gather.h"

namespace megalith::train {
namespace {

/// The rank's rows, each with a comma behind it.
std::string rows_of(int rank, const std::vector<Tracer::Span>& spans) {
  std::string rows =
      str("{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":", rank, ",\"args\":{\"name\":\"rank ", rank, "\"}},\n");
  for (const Tracer::Span& span : spans) {
    rows += str("{\"ph\":\"X\",\"name\":\"", span.name, "\",\"pid\":", rank, ",\"tid\":0,\"ts\":", 1e6 * span.start_s,
                ",\"dur\":", 1e6 * span.duration_s, "},\n");
  }
  return rows;
}

}  // namespace

void require_single_ops(const config::RunPlan& plan, std::string_view wish) {
  if (plan.graphs.mode == capture::GraphMode::none) return;
  throw ConfigError(str(wish, ": times single ops, which graphs.mode = \"", name(plan.graphs.mode),
                        "\" hands over as one; set graphs.mode = \"none\" for it"));
}

void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer) {
  const std::string mine = rows_of(world.rank(), tracer.spans());
  const std::vector<std::vector<std::byte>> everybody = gather_bytes(world, std::as_bytes(std::span(mine)));
  if (everybody.empty()) return;
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const std::vector<std::byte>& rows : everybody)
    text.append(reinterpret_cast<const char*>(rows.data()), rows.size());
  text.resize(text.size() - 2);  // the last comma
  io::publish_file(fs, file, text + "\n]}\n");
}

}  // namespace megalith::train
