#include "apps/eval/inference.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <span>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/str.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/choose.h"
#include "megalith/checkpoint/shard_io.h"
#include "megalith/io/checksum.h"
#include "megalith/io/problem_text.h"
#include "megalith/io/save_protocol.h"
#include "megalith/params/non_finite.h"
#include "megalith/tokenizer/vocabulary_files.h"
#include "megalith/train/gather.h"
#include "megalith/train/host_memory.h"

#include "apps/checkpoint/checkpoint_folder.h"
#include "apps/checkpoint/hf_folder.h"
#include "apps/checkpoint/saved_model.h"
#include "apps/program/command.h"
#include "apps/program/launch.h"
#include "apps/program/vocabulary.h"

namespace megalith::apps {
namespace {

/// The keys of a recipe that concern inference. The first five are those of GridKeys::even_stages.
constexpr std::array<std::string_view, 13> kKeys = {
    "parallel.tp",        "parallel.pp",           "parallel.ranks", "parallel.ep",        "parallel.etp",
    "parallel.chunks",    "parallel.group_size",   "parallel.order", "parallel.transfers", "parallel.share_gpu_memory",
    "parallel.timeout_s", "parallel.stage_layers", "device.threads"};

config::RunConfig parse_settings(const InferenceOptions& options) {
  const std::span<const std::string_view> keys =
      std::span(kKeys).first(options.keys == GridKeys::all ? kKeys.size() : 5);
  config::RunConfig c = config::parse_recipe("", "--set", options.settings);
  std::string names;
  for (const std::string_view key : keys) names += str(names.empty() ? "" : ", ", key);
  Problems problems;
  for (const auto& [key, value] : config::toml_values(c)) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    problems.add(key, value,
                 "is not for this command: the model is that of its checkpoint, and the grid's keys are " + names);
  }
  problems.throw_if_any("--set");
  return c;
}

/// The fewest samples that every schedule accepts. None is trained on.
Index legal_batch(const config::RunConfig& c, int ranks) {
  const Index pp = c.parallel.pp.value_or(1), tp = c.parallel.tp.value_or(1);
  const Index dense = std::max<Index>(1, tp * pp);
  const Index experts = std::max<Index>(1, c.parallel.etp.value_or(tp) * c.parallel.ep.value_or(1) * pp);
  const Index min_ranks = std::lcm(dense, experts);  // as resolve() derives parallel.ranks
  const Index dp = std::max<Index>(1, std::max<Index>(ranks, c.parallel.ranks.value_or(min_ranks)) / dense);
  return dp * std::max(pp, c.parallel.group_size.value_or(1));
}

/// The layers of each stage, spread as in eval::Decoder.
std::vector<Index> even_stages(Index layers, Index stages) {
  std::vector<Index> shares;
  for (Index i = 0; i < stages; ++i) shares.push_back(layers * (i + 1) / stages - layers * i / stages);
  return shares;
}

/// Throws NonFiniteError on all ranks if one has read a value that is not finite. Collective.
void require_finite(comm::World& world, const io::Path& folder, const FirstNonFinite& mine) {
  const std::string found = train::share_least_text(
      world, {mine.order(), mine.is_found() ? str(mine.parameter(), " = ", mine.value()) : std::string()});
  if (found.empty()) return;
  throw NonFiniteError(str("[", folder.string(), "] ", found,
                           ": values of parameters must be finite; the training has broken them, an earlier "
                           "checkpoint may be good"));
}

}  // namespace

void check_both(const std::function<void()>& a, const std::function<void()>& b) {
  std::string first;
  bool is_config = false;
  try {
    a();
  } catch (const ConfigError& error) {
    first = error.what();
    is_config = true;
  } catch (const InputError& error) {
    first = error.what();
  }
  const auto both = [&](const Error& error) { return str(first, first.empty() ? "" : "\n", error.what()); };
  try {
    b();
  } catch (const ConfigError& error) {
    throw ConfigError(both(error));
  } catch (const InputError& error) {
    if (is_config) throw ConfigError(both(error));
    throw InputError(both(error));
  }
  if (is_config) throw ConfigError(first);
  if (!first.empty()) throw InputError(first);
}

void refuse_masked_model(const std::string& checkpoint, const model::ModelConfig& model) {
  if (model.is_bert())
    throw ConfigError(str(checkpoint,
                          ": model.family = bert: must be a model that predicts the next token, as gpt2 and llama; of "
                          "bert `eval --task loss` and `score` give probabilities of masked tokens"));
}

void InferenceOptions::add_to(CLI::App& command) {
  command
      .add_option("--ranks", ranks,
                  "Ranks (default: the least that tp * pp and etp * ep * pp divide, or the launcher's processes)")
      ->check(at_least(1));
  command
      .add_option("--set", settings,
                  str("A key of the grid: parallel.tp=2, parallel.pp=2, parallel.ep=2, parallel.etp=1, ",
                      keys == GridKeys::all ? "parallel.chunks=2, " : "", "... (may be repeated)"))
      ->take_all()
      ->allow_extra_args(false);
  command
      .add_option("--device", device, "cpu or cuda (default: as trained; imported models: a GPU where there is one)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  std::vector<std::string> precisions = {"fp64", "fp32", "bf16"};
  const bool has_fp8 = keys == GridKeys::all;  // commands that decode have other GEMMs
  if (has_fp8) precisions.emplace_back("fp8");
  command
      .add_option("--precision", precision,
                  str("Of parameters and activations (default: fp32 on CPUs, bf16 on GPUs)",
                      has_fp8 ? "; fp8 is for CPUs" : ""))
      ->check(CLI::IsMember(precisions));
}

CLI::Option* add_model(CLI::App& command, InferenceOptions& options) {
  return command
      .add_option(
          "checkpoint,--checkpoint", options.checkpoint,
          "Step folder, folder of steps or OUT of a run, or a Hugging Face folder (docs/evaluation.md); required in "
          "one of both forms, checkpoint or --checkpoint")
      ->required();
}

void add_batch(CLI::App& command, Index& batch) {
  command.add_option("--batch", batch, "Texts that one pass takes (default: 4 on CPUs, 16 on GPUs)")
      ->check(between(1, 65536));
}

InferenceJob::InferenceJob(std::shared_ptr<io::Fs> fs, const InferenceOptions& options, const Launcher& launcher,
                           const Check& check)
    : fs_(std::move(fs)), given_(options.checkpoint) {
  config::RunConfig c = parse_settings(options);
  c.source = "--set";
  if (convert::is_hf_folder(*fs_, given_))
    describe_hf(c);
  else
    describe_checkpoint(c);
  require_task(c.task.name.value_or(""), options.task);
  const Device device = inference_device(options.device, usual_device_);
  c.device.type = std::string(name_of(device));
  c.train.precision = options.precision.empty() ? std::string(config::default_precision(device)) : options.precision;
  if (c.train.precision == "fp8" && device == Device::cuda)
    throw ConfigError(
        "--precision = fp8: is for --device cpu, where it repeats the evaluations of a run on CPUs; a "
        "GPU computes in bf16 or fp32");
  if (c.train.precision != "fp8") c.fp8 = {};
  if (device == Device::cuda && c.train.precision == "fp64")
    throw ConfigError("--precision = fp64: is for --device cpu; a GPU computes in bf16 or fp32");
  const int ranks = options.ranks > 0 ? options.ranks : launcher.processes;
  c.model.padded_vocab_size.reset();  // follows from tp
  c.parallel.sequence_parallel = false;
  c.moe.dispatcher.reset();  // all give the same results, and which can run follows from these ranks
  c.train.steps = 0;
  c.train.micro_batch = 1;
  c.train.global_batch = legal_batch(c, ranks);
  if (options.keys == GridKeys::even_stages && c.parallel.pp) {
    config::RunConfig alone = c;
    alone.parallel = {};
    alone.train.global_batch = 1;
    const Index layers = config::resolve(alone, 1).model.num_layers;
    if (*c.parallel.pp > 1 && *c.parallel.pp <= layers) c.parallel.stage_layers = even_stages(layers, *c.parallel.pp);
    if (*c.parallel.pp > layers) {
      check_both(
          [&] {
            throw ConfigError(
                str("parallel.pp = ", *c.parallel.pp, ": must be at most model.num_layers = ", layers, " to generate"));
          },
          [&] { resolve(alone, 1, check); });
    }
  }
  resolve(c, ranks, check);
  require_processes(launcher, "--ranks", plan_.grid.world_size, "");
  batch_ = options.batch > 0 ? options.batch : device == Device::cpu ? 4 : 16;
}

void InferenceJob::require_task(const std::string& tuned, const std::string& wanted) const {
  if (tuned == wanted) return;
  if (wanted.empty()) {
    throw ConfigError(str(given_.string(), ": is fine-tuned, task.name = ", tuned,
                          ": must be a model that predicts tokens; `eval --task ", tuned, "` takes it"));
  }
  if (tuned.empty()) {
    throw ConfigError(str("--task = ", wanted, ": ", given_.string(),
                          " is not fine-tuned; `train` with task.name = ", wanted, " makes such a checkpoint"));
  }
  throw ConfigError(
      str("--task = ", wanted, ": ", given_.string(), " is fine-tuned on another task; use --task ", tuned));
}

void InferenceJob::resolve(const config::RunConfig& c, int ranks, const Check& check) {
  const auto check_rest = [&] {
    if (check) check(*this);
  };
  bool is_resolved = false;
  check_both(
      [&] {
        plan_ = config::resolve(c, ranks);
        is_resolved = true;
      },
      [&] {
        if (!is_resolved) {
          config::RunConfig alone = c;
          alone.parallel = {};
          alone.train.global_batch = 1;
          try {
            plan_ = config::resolve(alone, 1);
          } catch (const ConfigError&) {
            return;  // the model itself, which is named already
          }
        }
        check_rest();
      });
}

void InferenceJob::describe_checkpoint(config::RunConfig& c) {
  for (;;) {
    folder_ = checkpoint_folder(*fs_, given_, checkpoint::OnCorrupt::previous, unusable_);
    checkpoint::CheckpointReader reader(*fs_, folder_);
    const config::RunConfig saved = recipe_of(reader);
    const config::RunPlan trained = config::resolve(saved);
    try {
      vocab_dir_ = vocabulary_of(*fs_, reader, trained.data);
    } catch (const InputError& error) {
      pass_over(*fs_, given_, folder_, error.what(), unusable_);
      continue;
    }
    const config::RunConfig described = model_of(saved);
    c.model = described.model;
    c.bert = described.bert;
    c.task = described.task;
    c.moe = described.moe;
    c.fp8 = saved.fp8;
    c.fp8.weight_grad.reset();
    c.train.seed = saved.train.seed;  // of held-out samples that are masked
    c.data.tokenizer = trained.data.tokenizer;
    c.data.format = saved.data.format;
    c.data.chat_template = saved.data.chat_template;
    if (!vocab_dir_.empty()) c.data.vocab_dir = vocab_dir_;
    saved_dtype_ = trained.train.policy().master;
    const bool is_imported = reader.manifest().run.step == 0;
    usual_device_ = is_imported ? Device::cuda : trained.device;
    return;
  }
}

void InferenceJob::describe_hf(config::RunConfig& c) {
  folder_ = given_;
  hf_ = convert::read_hf_config(*fs_, folder_);
  usual_device_ = Device::cuda;
  const ImportedTokenizer found = find_tokenizer(*fs_, folder_, hf_->config);
  const config::RunConfig model = keys_of(hf_->config);
  c.model = model.model;
  c.bert = model.bert;
  c.moe = model.moe;
  if (const std::string task = task_of(folder_, *hf_); !task.empty()) c.task.name = task;
  c.data.tokenizer = found.name;
  vocab_dir_ = folder_.string();
  c.data.vocab_dir = vocab_dir_;
}

std::shared_ptr<const tokenizer::Tokenizer> InferenceJob::tokenizer(const std::string& vocab_dir) const {
  const std::string& name = plan_.data.tokenizer;
  if (name == "byte" && !vocab_dir.empty()) {
    throw ConfigError(
        str("--vocab-dir = ", vocab_dir, ": the model's tokenizer is \"byte\", which reads no files; leave it away"));
  }
  const std::string& folder = vocab_dir.empty() ? vocab_dir_ : vocab_dir;
  if (name != "byte" && !folder.empty() && !tokenizer::has_vocabulary(*fs_, folder)) {
    throw InputError(str("[", folder, "] holds no tokenizer (", tokenizer::vocabulary_file_names(name), ")",
                         io::looked_for_in(folder), ": name the folder of the model's with --vocab-dir"));
  }
  auto tokenizer = open_tokenizer(*fs_, name, folder);
  const Index has = tokenizer->vocab_size(), needs = plan_.model.vocab_size;
  if (has > needs || (!vocab_dir.empty() && has != needs)) {
    throw InputError(str(vocab_dir.empty() ? "the checkpoint's tokenizer" : "--vocab-dir = " + vocab_dir, ": has ", has,
                         " ids, the model has ", needs,
                         ": must be the vocabulary that the model was trained with; name its folder with --vocab-dir"));
  }
  return tokenizer;
}

train::Facts InferenceJob::facts() const {
  const io::MappedFile description = fs_->map(folder_ / (hf_ ? "config.json" : io::kManifestName));
  return {{"the checkpoint", io::checksum(description.bytes()).hex()}};
}

eval::InferenceConfig InferenceJob::config(std::vector<eval::AskedResult> results, Index window) const {
  eval::InferenceConfig config{.model = plan_.model,
                               .stage_layers = plan_.stage_layers,
                               .chunks = plan_.chunks,
                               .group_size = plan_.group_size,
                               .dtype = plan_.train.policy().compute,
                               .gemms = plan_.train.policy().gemms,
                               .fp8 = plan_.fp8,
                               .device = plan_.device,
                               .batch = batch_,
                               .results = std::move(results)};
  if (config.model.has_rope()) config.model.seq_len = window;
  return config;
}

void InferenceJob::require_memory(comm::World& world, const BytesByOwner& bytes) const {
  constexpr const char* kFix = "use a smaller --batch, shorter texts, or more of parallel.tp or parallel.pp";
  if (plan_.device == Device::cpu) {
    const std::string lack = train::lack_of_host_memory(world, total(bytes), "[memory] the model", kFix);
    if (!lack.empty()) throw IoError(lack);
    return;
  }
  std::string lack;
  if (total(bytes) > device::memory_left(plan_.device)) {
    lack = str("--batch = ", batch_, ": rank ", world.rank(), " takes ", human_bytes(total(bytes)), " (",
               owners_text(bytes), ") of its GPU, where ", human_bytes(device::memory_left(plan_.device)),
               " are left: must fit; ", kFix);
  }
  lack = train::share_first_text(world, lack);
  if (!lack.empty()) throw ConfigError(lack);
}

std::string InferenceJob::fill_from_checkpoint(comm::World& world, const Fill& fill) const {
  std::vector<checkpoint::Rejected> unusable = unusable_;
  io::Path folder = folder_;
  for (;;) {
    folder = train::share_text(world, folder.string());
    std::string damage, digest;
    FirstNonFinite broken;
    try {
      checkpoint::CheckpointReader reader(*fs_, folder);
      digest = reader.manifest().digest.hex();
      fill(saved_dtype_, [&](const TensorSlice& slice, const Tensor& values) {
        reader.read(slice, values);
        broken.add(slice.name, values);
      });
    } catch (const InputError& error) {
      damage = error.what();
    }
    damage = train::share_first_text(world, damage);
    if (damage.empty()) {
      require_finite(world, folder, broken);
      return digest;
    }
    pass_over(*fs_, given_, folder, damage, unusable);
    if (world.rank() == 0) folder = checkpoint_folder(*fs_, given_, checkpoint::OnCorrupt::previous, unusable);
  }
}

std::string InferenceJob::fill_from_hf(comm::World& world, const Fill& fill) const {
  convert::HfReader reader(*fs_, folder_, *hf_, plan_.train.seed);
  if (world.rank() == 0) {
    reader.check_tensors();
    if (const std::string heads = reader.warning(); !heads.empty()) log::warning(heads);
  }
  const DType dtype = plan_.train.policy().compute == DType::f64 ? DType::f64 : DType::f32;
  FirstNonFinite broken;
  fill(dtype, [&](const TensorSlice& slice, const Tensor& values) {
    reader.read(slice, values);
    broken.add(slice.name, values);
  });
  require_finite(world, folder_, broken);
  if (world.rank() != 0) return train::share_text(world, "");
  std::string digests;
  for (const std::string& name : fs_->list(folder_)) {
    if (name == "config.json" || name.ends_with(".safetensors"))
      digests += str(name, ' ', io::checksum(fs_->map(folder_ / name).bytes()).hex(), '\n');
  }
  return train::share_text(world, io::checksum(std::as_bytes(std::span(digests.data(), digests.size()))).hex());
}

}  // namespace megalith::apps
