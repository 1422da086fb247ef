#include "megalith/io/fault_fs.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <system_error>
#include <thread>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/io/problem_text.h"

namespace megalith::io {
namespace {

constexpr std::array<std::string_view, kNumOperations> kNames = {
    "create", "append",     "write", "sync",   "close",  "map",     "rename",    "sync_dir",   "make_dir",
    "unlink", "remove_dir", "list",  "exists", "is_dir", "is_link", "file_size", "free_bytes", "call"};

struct ErrorName {
  std::string_view name;
  int number;
};
constexpr std::array<ErrorName, 8> kErrors = {{{"EIO", EIO},
                                               {"ENOSPC", ENOSPC},
                                               {"EDQUOT", EDQUOT},
                                               {"EROFS", EROFS},
                                               {"EACCES", EACCES},
                                               {"ENOENT", ENOENT},
                                               {"EMFILE", EMFILE},
                                               {"ESTALE", ESTALE}}};
constexpr auto kForever = std::numeric_limits<std::uint64_t>::max();

[[noreturn]] void refuse(std::string_view fault, std::string_view what, std::string_view value, std::string_view rule) {
  throw ConfigError(str("fault \"", fault, "\": ", what, " = ", value, ": ", rule,
                        " (the form is RANK:OPERATION:N:ACTION, as 0:sync:2:EIO)"));
}

template <class Number>
bool read_number(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

void read_operation(std::string_view fault, std::string_view text, Fault& result) {
  if (text == "*") return;
  for (int i = 0; i < kNumOperations; ++i) {
    if (kNames[static_cast<std::size_t>(i)] == text) result.operation = static_cast<Operation>(i);
  }
  if (result.operation.has_value()) return;
  const std::string_view near = nearest(text, kNames);
  refuse(fault, "operation", text, near.empty() ? std::string("is not known") : str("is not known; nearest: ", near));
}

void read_calls(std::string_view fault, std::string_view text, Fault& result) {
  std::string_view digits = text;
  if (text == "*") {
    result.last = kForever;
    return;
  }
  if (digits.ends_with('+')) digits.remove_suffix(1);
  if (!read_number(digits, result.first) || result.first < 1) {
    refuse(fault, "N", text, "must be a number from 1, a number followed by + or *");
  }
  result.last = digits.size() < text.size() ? kForever : result.first;
}

void read_action(std::string_view fault, std::string_view text, Fault& result) {
  for (const ErrorName& error : kErrors) {
    if (error.name == text) result.error_number = error.number;
  }
  if (result.error_number != 0) return;
  if (text == "short") {
    result.action = Fault::Action::short_write;
    result.error_number = ENOSPC;
  } else if (text == "kill") {
    result.action = Fault::Action::kill;
  } else if (text == "torn") {
    result.action = Fault::Action::torn;
  } else if (text == "skip") {
    result.action = Fault::Action::skip;
    if (result.operation != Operation::sync && result.operation != Operation::sync_dir)
      refuse(fault, "action", text, "goes with sync and sync_dir only");
  } else if (text.starts_with("sleep=") || text.starts_with("spin=")) {
    result.action = text.starts_with("spin") ? Fault::Action::spin : Fault::Action::delay;
    std::string_view amount = text.substr(text.find('=') + 1);
    const double unit = amount.ends_with("us") ? 1e-6 : amount.ends_with("ms") ? 1e-3 : 1.0;
    if (amount.ends_with('s')) amount.remove_suffix(unit == 1.0 ? 1 : 2);
    const bool is_number = read_number(amount, result.delay_s);
    result.delay_s *= unit;
    if (!is_number || !(result.delay_s >= 0 && result.delay_s <= 3600)) {
      refuse(fault, "action", text, "needs a time up to an hour, as sleep=20ms");
    }
  } else {
    refuse(fault, "action", text,
           "must be EIO, ENOSPC, EDQUOT, EROFS, EACCES, ENOENT, EMFILE, ESTALE, short, kill, torn, skip, sleep=TIME or "
           "spin=TIME");
  }
}

void check_action_of_call(std::string_view fault, std::string_view text, const Fault& read) {
  using enum Fault::Action;
  const bool fits = read.action == kill || read.action == delay || read.action == spin;
  if (read.operation == Operation::call && !fits)
    refuse(fault, "action", text, "a communication call can only be given kill, sleep=TIME or spin=TIME");
}

Fault parse_fault(std::string_view text) {
  std::array<std::string_view, 4> fields;
  std::string_view rest = text;
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::size_t colon = i + 1 < fields.size() ? rest.find(':') : rest.size();
    if (colon == std::string_view::npos) refuse(text, "fields", str(i + 1), "there must be 4");
    fields[i] = rest.substr(0, colon);
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  Fault fault;
  int rank = 0;
  if (fields[0] != "*") {
    if (!read_number(fields[0], rank) || rank < 0) refuse(text, "rank", fields[0], "must be a number from 0 or *");
    fault.rank = rank;
  }
  read_operation(text, fields[1], fault);
  read_calls(text, fields[2], fault);
  read_action(text, fields[3], fault);
  check_action_of_call(text, fields[3], fault);
  return fault;
}

[[noreturn]] void die() {
  std::raise(SIGKILL);
  std::abort();  // not reached
}

void sleep_for(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

void spin_for(double seconds) {
  for (const double end = monotonic_s() + seconds; monotonic_s() < end;) continue;
}

[[noreturn]] void throw_injected(const Fault& fault, Operation operation, const Path& path) {
  throw SystemError(system_problem(operation_name(operation), path.string(), fault.error_number) + " (injected)",
                    fault.error_number);
}

/// Runs one operation with what the faults ask for. `part` does half of it, where half of it can be done.
template <class Whole, class Part>
auto run(FaultFs::State& state, Operation operation, const Path& path, Whole&& whole, Part&& part) {
  const std::uint64_t of_all = state.total.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint64_t of_name =
      state.counts[static_cast<std::size_t>(operation)].fetch_add(1, std::memory_order_relaxed) + 1;
  if (state.recording) state.recorded.push_back(str(operation_name(operation), ' ', path.string()));
  if (state.faults.empty()) return whole();
  for (const Fault& fault : state.faults) {
    if (fault.operation.has_value() && *fault.operation != operation) continue;
    const std::uint64_t call = fault.operation.has_value() ? of_name : of_all;
    if (call < fault.first || call > fault.last) continue;
    switch (fault.action) {
      case Fault::Action::error:
        throw_injected(fault, operation, path);
      case Fault::Action::short_write:
        part();
        throw_injected(fault, operation, path);
      case Fault::Action::kill:
        die();
      case Fault::Action::torn:
        if (operation == Operation::write) {
          part();
        } else {
          whole();
        }
        die();
      case Fault::Action::skip:
        if constexpr (std::is_void_v<decltype(whole())>) return;
        break;
      case Fault::Action::delay:
        sleep_for(fault.delay_s);
        break;
      case Fault::Action::spin:
        spin_for(fault.delay_s);
    }
  }
  return whole();
}

template <class Whole>
auto run(FaultFs::State& state, Operation operation, const Path& path, Whole&& whole) {
  return run(state, operation, path, std::forward<Whole>(whole), [] {});
}

class FaultFile final : public OutputFile {
 public:
  FaultFile(std::unique_ptr<OutputFile> inner, Path path, std::shared_ptr<FaultFs::State> state)
      : inner_(std::move(inner)), path_(std::move(path)), state_(std::move(state)) {}

  void write(std::span<const std::byte> bytes) override {
    run(
        *state_, Operation::write, path_, [&] { inner_->write(bytes); },
        [&] { inner_->write(bytes.first(bytes.size() / 2)); });
  }
  void sync() override {
    run(*state_, Operation::sync, path_, [&] { inner_->sync(); });
  }
  void close() override {
    run(*state_, Operation::close, path_, [&] { inner_->close(); });
  }

 private:
  std::unique_ptr<OutputFile> inner_;
  Path path_;
  std::shared_ptr<FaultFs::State> state_;
};

}  // namespace

std::string_view operation_name(Operation operation) { return kNames[static_cast<std::size_t>(operation)]; }

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    faults.push_back(parse_fault(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return faults;
}

CallFaults::CallFaults(const std::vector<Fault>& faults, int rank) {
  std::ranges::copy_if(faults, std::back_inserter(faults_), [&](const Fault& fault) {
    return fault.operation == Operation::call && fault.rank.value_or(rank) == rank;
  });
}

void CallFaults::pass() {
  ++count_;
  for (const Fault& fault : faults_) {
    if (count_ < fault.first || count_ > fault.last) continue;
    if (fault.action == Fault::Action::kill) die();
    fault.action == Fault::Action::spin ? spin_for(fault.delay_s) : sleep_for(fault.delay_s);
  }
}

FaultFs::FaultFs(std::shared_ptr<Fs> inner, const std::vector<Fault>& faults, int rank)
    : inner_(std::move(inner)), state_(std::make_shared<State>()) {
  for (const Fault& fault : faults) {
    if (fault.rank.value_or(rank) == rank) state_->faults.push_back(fault);
  }
}

std::uint64_t FaultFs::count(Operation operation) const {
  return state_->counts[static_cast<std::size_t>(operation)].load();
}
std::uint64_t FaultFs::count() const { return state_->total.load(); }

std::unique_ptr<OutputFile> FaultFs::create(const Path& path) {
  return run(*state_, Operation::create, path, [&]() -> std::unique_ptr<OutputFile> {
    return std::make_unique<FaultFile>(inner_->create(path), path, state_);
  });
}
std::unique_ptr<OutputFile> FaultFs::append(const Path& path) {
  return run(*state_, Operation::append, path, [&]() -> std::unique_ptr<OutputFile> {
    return std::make_unique<FaultFile>(inner_->append(path), path, state_);
  });
}
MappedFile FaultFs::map(const Path& path) {
  return run(*state_, Operation::map, path, [&] { return inner_->map(path); });
}
void FaultFs::rename(const Path& from, const Path& to) {
  run(*state_, Operation::rename, from, [&] { inner_->rename(from, to); });
}
void FaultFs::sync_dir(const Path& directory) {
  run(*state_, Operation::sync_dir, directory, [&] { inner_->sync_dir(directory); });
}
void FaultFs::make_dir(const Path& directory) {
  run(*state_, Operation::make_dir, directory, [&] { inner_->make_dir(directory); });
}
void FaultFs::unlink(const Path& file) {
  run(*state_, Operation::unlink, file, [&] { inner_->unlink(file); });
}
void FaultFs::remove_dir(const Path& directory) {
  run(*state_, Operation::remove_dir, directory, [&] { inner_->remove_dir(directory); });
}
std::vector<std::string> FaultFs::list(const Path& directory) {
  return run(*state_, Operation::list, directory, [&] { return inner_->list(directory); });
}
bool FaultFs::exists(const Path& path) {
  return run(*state_, Operation::exists, path, [&] { return inner_->exists(path); });
}
bool FaultFs::is_dir(const Path& path) {
  return run(*state_, Operation::is_dir, path, [&] { return inner_->is_dir(path); });
}
bool FaultFs::is_link(const Path& path) {
  return run(*state_, Operation::is_link, path, [&] { return inner_->is_link(path); });
}
std::uint64_t FaultFs::file_size(const Path& path) {
  return run(*state_, Operation::file_size, path, [&] { return inner_->file_size(path); });
}
std::uint64_t FaultFs::free_bytes(const Path& directory) {
  return run(*state_, Operation::free_bytes, directory, [&] { return inner_->free_bytes(directory); });
}

}  // namespace megalith::io
