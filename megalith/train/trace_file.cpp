#include "megalith/train/trace_file.h"

#include <string>
#include <vector>

#include "megalith/base/str.h"

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

void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer) {
  Exec host;
  const comm::Group& all = world.all();
  std::string rows = rows_of(world.rank(), tracer.spans());
  auto size = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()));
  comm::all_gather(host, all, Tensor(&size, {1}, DType::i64), Tensor(sizes.data(), {world.size()}, DType::i64))
      .wait(host);
  if (world.rank() != 0) {
    comm::send(host, all, Tensor(rows.data(), {size}, DType::u8), 0).wait(host);
    return;
  }
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + rows;
  for (int rank = 1; rank < world.size(); ++rank) {
    rows.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
    comm::recv(host, all, Tensor(rows.data(), {static_cast<Index>(rows.size())}, DType::u8), rank).wait(host);
    text += rows;
  }
  text.resize(text.size() - 2);  // the last comma
  io::publish_file(fs, file, text + "\n]}\n");
}

}  // namespace megalith::train
