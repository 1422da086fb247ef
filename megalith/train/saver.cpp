#include "megalith/train/saver.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "megalith/base/error.h"
#include "megalith/base/hash.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/config/keys.h"
#include "megalith/convert/hf_model.h"
#include "megalith/model/chunk.h"
#include "megalith/nn/moe/router.h"
#include "megalith/train/attention_facts.h"
#include "megalith/train/gather.h"
#include "megalith/train/moment_types.h"
#include "megalith/train/optimizer_record.h"
#include "megalith/train/replica_check.h"
#include "megalith/train/saved_run.h"

namespace megalith::train {
namespace {

// Among the manifest's texts.
constexpr const char *kGemmTable = "gemm_table", *kAttention = "attention";
// Among its integers and, the loss, its reals: HeldOutRecord.
constexpr const char *kBestStep = "held_out_best_step", *kBestLoss = "held_out_best_loss",
                     *kWithout = "held_out_without", *kLastStep = "held_out_last_step";

/// What a file may take on a disk beyond its bytes: blocks in part, its entry in a folder.
constexpr std::uint64_t kRestOfFile = std::uint64_t{8} << 10;
/// The manifest has at most one byte for the checksums of so many.
constexpr std::uint64_t kBytesPerChecksum = std::uint64_t{32} << 10;

/// Nothing where the run that saved had none.
std::optional<HeldOutRecord> held_out_record(const checkpoint::RunState& saved) {
  if (!saved.reals.contains(kBestLoss)) return std::nullopt;
  return HeldOutRecord{.best_step = count_of(saved, kBestStep),
                       .best_loss = real_of(saved, kBestLoss),
                       .without = count_of(saved, kWithout),
                       .last_step = count_of(saved, kLastStep)};
}

}  // namespace

Saver::Saver(Engine& engine, const config::RunPlan& plan, const DataIdentity& identity, io::Fs& fs, io::Path folder)
    : engine_(engine), plan_(plan), identity_(identity), fs_(fs), folder_(std::move(folder)) {}

std::vector<StatePiece> Saver::owned() const {
  return owned_pieces(engine_.stage().params(), engine_.optimizers(), engine_.mesh());
}

std::optional<checkpoint::ShardReport> Saver::write_shard(const io::Path& staging) {
  const std::vector<StatePiece> pieces = owned();
  if (pieces.empty()) return std::nullopt;
  std::vector<checkpoint::PieceInfo> infos;
  for (const StatePiece& piece : pieces) infos.push_back({piece.slice, piece.values.dtype()});
  return checkpoint::write_shard(fs_, staging, checkpoint::shard_file_name(engine_.world().rank()), infos,
                                 HostStaging::kBytes, [&](std::size_t piece, Index first, Index count) {
                                   return staging_.read(engine_.exec(), pieces[piece].values, first, count);
                                 });
}

Saver::Source Saver::source_of(checkpoint::CheckpointReader& reader) const {
  return {.what = "checkpoint",
          .has =
              [&](const TensorSlice& slice) {
                const checkpoint::TensorRecord* const found = reader.manifest().find(slice.name);
                return found != nullptr && found->shape == slice.global;
              },
          .read =
              [&](const TensorSlice& block, const Tensor& host) {
                if (starts_from_zero(reader.manifest(), block.name))
                  std::memset(host.raw(), 0, static_cast<std::size_t>(host.bytes()));
                else if (is_of_other_type(reader.manifest(), block.name, host.dtype()))
                  read_converted(reader, block, host);
                else
                  reader.read(block, host);
              }};
}

void Saver::read_pieces(const Source& source, StateTensors tensors) {
  for (const StatePiece& piece : updated_pieces(engine_.stage().params(), engine_.optimizers(), tensors)) {
    if (tensors == StateTensors::values && is_new(source, piece.slice)) continue;
    const Index most = HostStaging::kBytes / size_of(piece.values.dtype());
    checkpoint::for_each_block(piece.slice, most, [&](const TensorSlice& block, Index first) {
      staging_.write(engine_.exec(), piece.values, first, block.local.numel(),
                     [&](const Tensor& host) { source.read(block, host); });
    });
  }
}

bool Saver::is_new(const Source& source, const TensorSlice& slice) const {
  return plan_.model.task && slice.name.starts_with("head.") && !source.has(slice);
}

std::string Saver::new_parameters(const Source& source) const {
  std::string names;
  for (const ParamSpec& param : model::declare_whole_model(plan_.model))
    if (is_new(source, param.slice)) names += str(names.empty() ? "" : ", ", param.slice.name);
  return names.empty() ? names : str("the ", source.what, " has no ", names, ": from the seed");
}

bool Saver::starts_from_zero(const checkpoint::Manifest& saved, std::string_view tensor) const {
  const auto is_one = [&](const nn::RouterState& state) { return tensor.ends_with(state.name_end); };
  return std::ranges::any_of(nn::router_states(plan_.model.moe), is_one) && saved.find(tensor) == nullptr;
}

checkpoint::Digest128 Saver::digest_of_changes(checkpoint::CheckpointReader& reader) {
  checkpoint::StateDigest changed, left_out;
  for (const StatePiece& piece : owned()) {
    const std::string& name = piece.slice.name;
    if (starts_from_zero(reader.manifest(), name)) {
      add_digest(piece, changed);
    } else if (is_of_other_type(reader.manifest(), name, piece.values.dtype())) {
      add_digest(piece, changed);
      add_saved(reader, piece.slice, left_out);
    }
  }
  checkpoint::Digest128 change = changed.value();
  if (engine_.world().rank() > 0) return change -= left_out.value();
  for (const nn::RouterState& state : nn::router_states(plan_.model.moe)) {
    for (const checkpoint::TensorRecord& tensor : reader.manifest().tensors) {
      if (state.is_kept || !tensor.name.ends_with(state.name_end)) continue;
      add_saved(reader, TensorSlice::whole(tensor.name, tensor.shape), left_out);
    }
  }
  return change -= left_out.value();
}

std::vector<std::string> Saver::warnings_of_other_rules(const checkpoint::Manifest& saved) const {
  std::vector<std::string> warnings;
  if (!plan_.model.moe.has_experts()) return warnings;
  for (const nn::RouterState& state : nn::router_states(plan_.model.moe)) {
    const bool was_kept = std::ranges::any_of(
        saved.tensors, [&](const checkpoint::TensorRecord& tensor) { return tensor.name.ends_with(state.name_end); });
    if (state.is_kept && !was_kept) warnings.push_back(str(state.text, " start at 0: the checkpoint has none"));
    if (!state.is_kept && was_kept)
      warnings.push_back(str(state.text, " are left out: the checkpoint has them, this run does not use them"));
  }
  return warnings;
}

checkpoint::RunState Saver::run_state(const Progress& progress) {
  checkpoint::RunState state = state_at_start(plan_, identity_);
  state.step = progress.step;
  state.integers[kSamples] = progress.samples;
  add_optimizer_state(state, engine_.optimizer_state(), plan_.train.scaling);
  if (progress.held_out) {
    state.integers[kBestStep] = progress.held_out->best_step;
    state.integers[kWithout] = progress.held_out->without;
    state.integers[kLastStep] = progress.held_out->last_step;
    state.reals[kBestLoss] = progress.held_out->best_loss;
  }
  if (!engine_.gemm_table().empty()) state.texts[kGemmTable] = ops::gemm_table_text(engine_.gemm_table());
  if (const std::string kernels = attention_kernels(plan_); !kernels.empty()) state.texts[kAttention] = kernels;
  return state;
}

bool Saver::any(bool mine) {
  std::uint64_t flag = mine ? 1 : 0;
  comm::all_reduce(host_, engine_.world().all(), Tensor(&flag, {1}, DType::u64), comm::Reduce::max).wait(host_);
  return flag != 0;
}

std::string Saver::first_problem(const std::string& mine) { return share_first_text(engine_.world(), mine); }

std::vector<checkpoint::ShardReport> Saver::gather(const std::optional<checkpoint::ShardReport>& mine) {
  const std::vector<std::vector<std::byte>> everybody =
      gather_bytes(engine_.world(), mine ? checkpoint::serialize_report(*mine) : std::vector<std::byte>{});
  std::vector<checkpoint::ShardReport> reports;
  for (std::size_t rank = 0; rank < everybody.size(); ++rank) {
    if (!everybody[rank].empty())
      reports.push_back(checkpoint::parse_report(everybody[rank], str("report of rank ", rank)));
  }
  return reports;
}

std::uint64_t Saver::bytes_of_shards() {
  constexpr std::uint64_t kOfPiece = 448;  // of numbers and punctuation, in header and manifest
  constexpr std::uint64_t kNames = 3;      // how often a name is written
  std::uint64_t bytes = 0;
  for (const StatePiece& piece : owned())
    bytes += static_cast<std::uint64_t>(piece.values.whole_bytes()) + kOfPiece + kNames * piece.slice.name.size();
  if (bytes > 0) bytes += kRestOfFile + bytes / kBytesPerChecksum;
  comm::all_reduce(host_, engine_.world().all(), Tensor(&bytes, {1}, DType::u64), comm::Reduce::sum).wait(host_);
  return bytes;
}

std::uint64_t Saver::bytes_of_plain_files() const {
  constexpr std::uint64_t kRestOfManifest = std::uint64_t{4} << 10;
  // Both texts are in the manifest, with line ends as two bytes.
  std::uint64_t bytes = 2 * config::to_toml(plan_.as_config()).size() + kRestOfManifest + kRestOfFile;
  if (!engine_.gemm_table().empty()) bytes += 2 * ops::gemm_table_text(engine_.gemm_table()).size();
  if (identity_.vocabulary == nullptr) return bytes;
  for (const tokenizer::VocabularyFile& file : *identity_.vocabulary) bytes += file.text.size() + kRestOfFile;
  return bytes;
}

std::string Saver::lack_of_space() {
  if (!shards_) shards_ = bytes_of_shards();
  if (engine_.world().rank() != 0) return "";
  const std::uint64_t needed = last_saved_ > 0 ? last_saved_ : *shards_ + bytes_of_plain_files();
  std::uint64_t free = io::Fs::kUnknownBytes;
  try {
    free = fs_.free_bytes(folder_);
  } catch (const io::SystemError& error) {
    if (error.number() == ENOSPC || error.number() == EDQUOT) free = 0;
  } catch (const IoError&) {  // the save throws it
  }
  if (free >= needed) return "";
  return str("[", folder_.string(), "] a checkpoint takes ", human_bytes(static_cast<Index>(needed)), ", ",
             human_bytes(static_cast<Index>(free)), " are free: free some space, or write elsewhere");
}

void Saver::prune() {
  const checkpoint::Pruned pruned = checkpoint::prune(fs_, folder_, static_cast<int>(plan_.checkpoint.keep), verified_);
  for (const io::StepFolder& folder : pruned.kept_unread) {
    if (std::ranges::find(unread_, folder) != unread_.end()) continue;
    unread_.push_back(folder);
    log::warning(str("old checkpoint ", (folder_ / folder.name()).string(),
                     " stays: its manifest is damaged or of another version; remove the folder if it has no use"));
  }
}

checkpoint::Digest128 Saver::save(const Progress& progress, Space space) {
  require_equal_replicas(engine_, staging_);
  const bool first = engine_.world().rank() == 0;
  std::string problem;
  const auto attempt = [&](auto&& work) {  // an I/O failure of one rank is everybody's answer, not a deadlock
    try {
      if (problem.empty()) work();
    } catch (const IoError& error) {
      problem = error.what();
    }
  };
  io::Path staging;
  if (space == Space::asked) problem = lack_of_space();
  if (first) attempt([&] { staging = io::begin_save(fs_, folder_, progress.step); });
  staging = share_text(engine_.world(), staging.string());

  problem = first_problem(problem);
  std::optional<checkpoint::ShardReport> report;
  std::vector<checkpoint::ShardReport> vocabulary;
  if (problem.empty()) {
    attempt([&] { report = write_shard(staging); });
    if (first) attempt([&] { vocabulary = write_vocabulary(fs_, staging, identity_); });
    problem = first_problem(problem);
  }
  checkpoint::Digest128 digest;
  if (problem.empty()) {
    std::vector<checkpoint::ShardReport> reports = gather(report);
    if (first) {
      reports.insert(reports.end(), vocabulary.begin(), vocabulary.end());
      const checkpoint::Manifest manifest = checkpoint::build_manifest(run_state(progress), reports);
      digest = manifest.digest;
      attempt([&] {
        const std::string text = checkpoint::manifest_text(manifest);
        io::publish(fs_, staging, text);
        last_saved_ =
            static_cast<std::uint64_t>(manifest.bytes()) + text.size() + kRestOfFile * (manifest.files.size() + 1);
      });
    }
    problem = first_problem(problem);
  }
  if (!problem.empty()) {
    if (first && !staging.empty()) io::abandon(fs_, staging);
    throw IoError(problem);
  }
  const std::string shared = share_text(engine_.world(), first ? digest.hex() : std::string());
  if (first) {  // the save stands whatever happens here, and the other ranks go on
    attempt([&] { prune(); });
    if (!problem.empty()) log::warning(str("old checkpoints were not removed: ", problem));
  }
  return *checkpoint::Digest128::from_hex(shared);
}

void Saver::load(checkpoint::CheckpointReader& reader) {
  read_pieces(source_of(reader), StateTensors::values_and_moments);
  const checkpoint::RunState& saved = reader.manifest().run;
  ops::OptimizerState optimizer = engine_.optimizer_state();
  take_optimizer_state(saved, plan_.train.scaling, optimizer);
  engine_.set_optimizer_state(optimizer);
}

checkpoint::Digest128 Saver::digest_of_state(const Progress& progress) {
  checkpoint::StateDigest digest;
  for (const StatePiece& piece : owned()) add_digest(piece, digest);
  checkpoint::Digest128 sum = digest.value();
  if (engine_.world().rank() == 0) sum += checkpoint::digest_of(run_state(progress));
  return sum_over_ranks(sum);
}

void Saver::add_digest(const StatePiece& piece, checkpoint::StateDigest& digest) {
  const Index most = HostStaging::kBytes / size_of(piece.values.dtype());
  checkpoint::for_each_block(piece.slice, most, [&](const TensorSlice& block, Index from) {
    digest.add_tensor(block, staging_.read(engine_.exec(), piece.values, from, block.local.numel()));
  });
}

checkpoint::Digest128 Saver::sum_over_ranks(const checkpoint::Digest128& mine) {
  std::array<std::uint64_t, 2> lanes = {mine.high, mine.low};
  comm::all_reduce(host_, engine_.world().all(), Tensor(lanes.data(), {2}, DType::u64), comm::Reduce::sum).wait(host_);
  return {lanes[0], lanes[1]};
}

void Saver::compare_recipe(const checkpoint::RunState& saved, std::vector<std::string>& warnings) const {
  const config::RunConfig then = saved_recipe(saved, "[resume]");
  if (saved_hash(saved, kCorpusHash) == hex64(0)) {
    throw CheckpointError(CheckpointError::Kind::refused,
                          str("[resume] ", folder_.string(),
                              " holds an imported model, which no run here has trained: to train on it, give "
                              "train.init its folder, and another --out"));
  }
  const config::ResumeChanges changes = config::resume_changes(then, plan_);
  std::string refused;
  for (const std::string& line : changes.refused) refused += "\n  " + line;
  warnings.insert(warnings.end(), changes.warned.begin(), changes.warned.end());
  if (std::string jump = config::wsd_change(then, plan_, saved.step, count_of(saved, kUpdates)); !jump.empty())
    warnings.push_back(std::move(jump));
  if (!is_saved_hash(saved, kTokenizerHash, identity_.tokenizer))
    refused += "\n  data.tokenizer: its vocabulary differs from the checkpoint's";
  if (!is_saved_hash(saved, kCorpusHash, identity_.corpus))
    refused += str("\n  data.train: its tokens differ from those the checkpoint was trained on",
                   plan_.data.format == data::DataFormat::chat
                       ? ", or data.chat_packing differs: false has the samples of checkpoints from before that key"
                       : "");
  if (!refused.empty())
    throw CheckpointError(CheckpointError::Kind::refused, "[resume] the checkpoint belongs to another run:" + refused);
  const std::string unicode = saved_hash(saved, kUnicodeVersion);
  if (!unicode.empty() && !identity_.unicode.empty() && unicode != identity_.unicode)
    warnings.push_back(str("data.tokenizer: PCRE2 has the characters of Unicode ", identity_.unicode,
                           " here, the checkpoint was trained with those of ", unicode,
                           "; text with a character that is new in one of them may get other ids"));
}

void Saver::take_from_checkpoint(const io::Path& folder, std::vector<std::string>& taken) {
  checkpoint::CheckpointReader reader(fs_, folder);
  const checkpoint::Manifest& saved = reader.manifest();
  taken = require_fit(plan_, identity_, saved.run, folder);
  const Source source = source_of(reader);
  read_pieces(source, StateTensors::values);
  if (std::string line = new_parameters(source); !line.empty()) taken.push_back(std::move(line));
  if (engine_.world().rank() == 0)
    for (const std::string& warning : warnings_of_other_rules(saved))
      log::warning(str(plan_.init_key(), ": ", warning));
}

void Saver::take_from_hf(const io::Path& folder, std::vector<std::string>& taken) {
  const convert::HfModel hf = convert::read_hf_config(fs_, folder);
  taken = require_fit(plan_, hf, folder);
  convert::HfReader reader(fs_, folder, hf, plan_.train.seed);
  const Source source{.what = "folder",
                      .has = [&](const TensorSlice& slice) { return reader.has(slice); },
                      .read = [&](const TensorSlice& block, const Tensor& host) { reader.read(block, host); }};
  read_pieces(source, StateTensors::values);
  if (std::string line = new_parameters(source); !line.empty()) taken.push_back(std::move(line));
}

std::vector<std::string> Saver::take_values(const io::Path& folder) {
  std::vector<std::string> taken;
  const std::string where = plan_.init_key();
  const io::Path chosen = share_text(engine_.world(), folder.string());
  std::string damage, failure;
  try {
    if (convert::is_hf_folder(fs_, chosen))
      take_from_hf(chosen, taken);
    else
      take_from_checkpoint(chosen, taken);
  } catch (const InputError& error) {
    damage = error.what();
  } catch (const IoError& error) {
    failure = error.what();
  }
  if (const std::string first = first_problem(failure); !first.empty()) throw IoError(str("[", where, "] ", first));
  if (const std::string first = first_problem(damage); !first.empty()) throw InputError(str("[", where, "] ", first));
  engine_.refresh_values();
  return taken;
}

io::StepFolder Saver::choose(const Unusable& unusable, std::vector<std::string>& warnings) {
  try {
    const checkpoint::Choice choice =
        checkpoint::find_newest_valid(fs_, folder_, plan_.checkpoint.on_corrupt, unusable.folders);
    for (const checkpoint::Rejected& r : choice.rejected)
      warnings.push_back(str("checkpoint ", r.folder.name(), " cannot be used and was passed over: ", r.reason));
    return choice.folder;
  } catch (const CheckpointError& error) {
    if (unusable.by_digest) throw CheckpointError(CheckpointError::Kind::refused, error.what());
    throw;
  }
}

std::string Saver::read(Resumed& resumed, checkpoint::Digest128& wanted) {
  std::string damage, failure;
  checkpoint::Digest128 change;
  try {
    checkpoint::CheckpointReader reader(fs_, resumed.folder);
    const checkpoint::RunState& saved = reader.manifest().run;
    compare_recipe(saved, resumed.warnings);
    resumed.progress = {saved.step, count_of(saved, kSamples), held_out_record(saved)};
    const auto gemm_table = saved.texts.find(kGemmTable);
    resumed.gemm_table = gemm_table == saved.texts.end() ? std::string() : gemm_table->second;
    if (const auto attention = saved.texts.find(kAttention); attention != saved.texts.end()) {
      const std::string kernels = changed_attention(attention->second, attention_kernels(plan_));
      if (!kernels.empty()) resumed.warnings.push_back(kernels);
    }
    wanted = reader.manifest().digest;
    load(reader);
    change = digest_of_changes(reader);
    for (std::string& warning : warnings_of_other_rules(reader.manifest()))
      resumed.warnings.push_back(std::move(warning));
  } catch (const InputError& error) {
    damage = error.what();
  } catch (const IoError& error) {
    failure = error.what();
  }
  // What was not read is not damaged: no rank may go on from an older one because of it.
  if (const std::string first = first_problem(failure); !first.empty()) throw IoError(first);
  std::string problem = first_problem(damage);
  if (problem.empty()) wanted += sum_over_ranks(change);
  return problem;
}

std::optional<Resumed> Saver::resume() {
  const bool first = engine_.world().rank() == 0;
  if (any(first && io::published(fs_, folder_).empty())) return std::nullopt;
  Unusable unusable;
  for (;;) {
    Resumed resumed;
    const io::StepFolder chosen = first ? choose(unusable, resumed.warnings) : io::StepFolder{};
    resumed.folder = share_text(engine_.world(), first ? (folder_ / chosen.name()).string() : std::string());
    checkpoint::Digest128 wanted;
    std::string problem = read(resumed, wanted);
    const bool is_read = problem.empty();
    if (is_read) {
      engine_.refresh_values();
      resumed.digest = digest_of_state(resumed.progress);
      if (resumed.digest == wanted) return resumed;
      problem = str("[resume] ", resumed.folder, ": the state digest in memory is ", resumed.digest.hex(),
                    ", the manifest has ", wanted.hex(), ": some value is not the one that was saved");
    }
    if (plan_.checkpoint.on_corrupt == checkpoint::OnCorrupt::fail) {
      if (is_read) throw CheckpointError(CheckpointError::Kind::refused, problem);
      throw InputError(problem);
    }
    unusable.folders.push_back({chosen, problem});
    unusable.by_digest |= is_read;
  }
}

}  // namespace megalith::train
