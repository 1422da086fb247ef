#include "megalith/train/trace_file.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/host.h"
#include "megalith/base/str.h"
#include "megalith/comm/gather_values.h"
#include "megalith/comm/synchronize_ranks.h"
#include "megalith/io/problem_text.h"
#include "megalith/train/gather.h"

namespace megalith::train {
namespace {

constexpr int kOpsRow = 0, kFirstCommunicationRow = 1;

/// How long after the first rank of its host this rank's trace starts: processes of a host read one clock.
double later_s(comm::World& world, const Tracer& tracer) {
  struct Start {
    std::uint64_t host = 0;
    double clock_s = 0;
  };
  const Start mine{host_id(), tracer.start_clock_s()};
  double first_s = mine.clock_s;
  for (const Start& start : comm::gather_values(world.all(), mine)) {
    if (start.host == mine.host) first_s = std::min(first_s, start.clock_s);
  }
  return mine.clock_s - first_s;
}

/// As traces have it, to a nanosecond, also after hours.
std::string trace_time(double seconds) {
  char text[64];
  std::snprintf(text, sizeof text, "%.3f", 1e6 * seconds);
  return text;
}

/// `of`: "process_name" or "thread_name", which viewers show for a rank or one of its rows.
std::string name_row(const char* of, int rank, int row, const std::string& name) {
  return str(R"({"ph":"M","name":")", of, R"(","pid":)", rank, R"(,"tid":)", row, R"(,"args":{"name":")", name,
             "\"}},\n");
}

/// A bar; `more` follows its times.
std::string bar(std::string_view name, int rank, int row, double start_s, double duration_s, const std::string& more) {
  return str(R"({"ph":"X","name":")", name, R"(","pid":)", rank, R"(,"tid":)", row, R"(,"ts":)", trace_time(start_s),
             R"(,"dur":)", trace_time(duration_s), ',', more, "},\n");
}

/// Calls that are under way at once stand in rows of their own: bars of one row must not overlap.
std::string communication_rows(int rank, double later_s, std::vector<Tracer::CallSpan> calls) {
  std::ranges::stable_sort(calls, {}, &Tracer::CallSpan::start_s);
  std::string rows;
  std::vector<double> ends_s;  // of each row so far
  for (const Tracer::CallSpan& call : calls) {
    const auto free = std::ranges::find_if(ends_s, [&](double end_s) { return end_s <= call.start_s; });
    const int row = kFirstCommunicationRow + static_cast<int>(free - ends_s.begin());
    if (free == ends_s.end()) {
      rows += name_row("thread_name", rank, row, "communication");
      ends_s.push_back(0);
    }
    ends_s[static_cast<std::size_t>(row - kFirstCommunicationRow)] = call.start_s + call.duration_s;
    rows += bar(call.name, rank, row, later_s + call.start_s, call.duration_s,
                str(R"("cat":")", name_of(StepPhase::communication), R"(","args":{"group":")", call.group,
                    R"(","bytes":)", call.bytes, '}'));
  }
  return rows;
}

/// {"tp":[0,1],"pp":[0,2]}: the ranks of each group, in its order.
std::string members_row(int rank, const std::vector<comm::Group>& groups) {
  std::string members;
  for (const comm::Group& group : groups) {
    std::string ranks;
    for (const int member : group.world_ranks()) ranks += str(ranks.empty() ? "" : ",", member);
    members += str(members.empty() ? "" : ",", '"', group.name(), "\":[", ranks, ']');
  }
  return str(R"({"ph":"M","name":"groups","pid":)", rank, R"(,"tid":)", kOpsRow, R"(,"args":{)", members, "}},\n");
}

/// The rank's rows, each followed by a comma.
std::string rows_of(int rank, double later_s, const Tracer& tracer, const std::vector<comm::Group>& groups) {
  std::string rows = name_row("process_name", rank, kOpsRow, str("rank ", rank)) +
                     name_row("thread_name", rank, kOpsRow, "ops") + members_row(rank, groups);
  for (const Tracer::Span& span : tracer.spans()) {
    rows += bar(span.name, rank, kOpsRow, later_s + span.start_s, span.duration_s,
                str(R"("cat":")", name_of(span.phase), '"'));
  }
  return rows + communication_rows(rank, later_s, tracer.calls());
}

}  // namespace

void require_single_ops(const config::RunPlan& plan, std::string_view wish) {
  if (plan.graphs.mode == capture::GraphMode::none) return;
  throw ConfigError(str(wish, ": times single ops, which graphs.mode = \"", name(plan.graphs.mode),
                        "\" submits as one; set graphs.mode = \"none\" for it"));
}

void require_trace(const config::RunPlan& plan, const io::Path& file) {
  const std::string wish = "--trace = " + file.string();
  require_single_ops(plan, wish);
  const io::Path folder = file.parent_path();
  std::error_code ignored;  // what cannot be asked about is no folder
  if (!folder.empty() && !std::filesystem::is_directory(folder, ignored))
    throw ConfigError(
        str(wish, ": there is no folder ", folder.string(), io::looked_for_in(folder), "; make it first"));
  if (std::filesystem::is_directory(file, ignored)) throw ConfigError(str(wish, ": is a folder; name a file in it"));
  if (std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored))
    throw ConfigError(str(wish, ": is a device or a pipe, which no file may replace; name another"));
}

void begin_trace(comm::World& world, Exec& ex, Tracer& tracer) {
  comm::synchronize_ranks(world, ex, "before steps are traced");
  ex.set_tracer(&tracer);
}

void write_trace(comm::World& world, io::Fs& fs, const io::Path& file, const Tracer& tracer,
                 const std::vector<comm::Group>& groups) {
  const std::string mine = rows_of(world.rank(), later_s(world, tracer), tracer, groups);
  const std::vector<std::vector<std::byte>> everybody = gather_bytes(world, std::as_bytes(std::span(mine)));
  if (everybody.empty()) return;
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (const std::vector<std::byte>& rows : everybody)
    text.append(reinterpret_cast<const char*>(rows.data()), rows.size());
  text.resize(text.size() - 2);  // the last comma
  io::publish_file(fs, file, text + "\n]}\n");
}

std::vector<comm::Group> traced_groups(const comm::Mesh& mesh) {
  std::vector<comm::Group> groups;
  const auto add = [&](const comm::Group& group) {
    const bool is_new = std::ranges::none_of(groups, [&](const auto& other) { return other.name() == group.name(); });
    if (group.size() > 1 && is_new) groups.push_back(group);
  };
  for (const comm::Group* group : {&mesh.world, &mesh.tp, &mesh.pp, &mesh.dp, &mesh.dp_cp, &mesh.cp, &mesh.embd,
                                   &mesh.ep, &mesh.etp, &mesh.etp_ep, &mesh.edp})
    add(*group);
  if (mesh.etp_ep_pp) add(*mesh.etp_ep_pp);
  return groups;
}

}  // namespace megalith::train
