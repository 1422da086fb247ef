#include "megalith.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/problems.h"
#include "megalith/base/str.h"
#include "megalith/model/model_spec.h"

#include "apps/library/loaded_model.h"
#include "apps/program/version.h"

struct megalith_model {
  megalith::apps::LoadedModel loaded;
};

namespace megalith::apps {
namespace {

thread_local std::string last_error;

constexpr std::int32_t kEndOfDocument = -2;

/// Runs a function of the API. Returns its exit code, and keeps the text of its error.
template <class F>
int guarded(const F& f) noexcept {
  const auto fail = [](ExitCode code, const char* text) {
    try {
      last_error = text;
    } catch (...) {
      last_error.clear();
    }
    return static_cast<int>(code);
  };
  try {
    f();
    return 0;
  } catch (const Error& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::io, "the system has too little memory");
  } catch (const std::exception& error) {
    return fail(ExitCode::internal, error.what());
  } catch (...) {
    return fail(ExitCode::internal, "an error without a text");
  }
}

void require_argument(const void* argument, const char* name) {
  if (argument == nullptr) throw ConfigError(str(name, " = NULL: must be given"));
}

void require_size(std::size_t size, std::size_t known, const char* type) {
  if (size != known)
    throw ConfigError(str(type, ".size = ", size, ": must be ", known,
                          ", its size in this library: build the caller with the header of this version"));
}

/// Memory for the caller, with a copy.
template <class T>
T* copy_for_caller(const T* from, std::size_t count) {
  T* const copy = static_cast<T*>(std::malloc(std::max<std::size_t>(count, 1) * sizeof(T)));
  if (copy == nullptr) throw std::bad_alloc();
  if (count > 0) std::memcpy(copy, from, count * sizeof(T));
  return copy;
}

std::string text_or_empty(const char* text) { return text == nullptr ? "" : text; }

InferenceOptions inference_options(const char* checkpoint, const megalith_options& options) {
  Problems problems;
  const std::string device = text_or_empty(options.device), precision = text_or_empty(options.precision);
  problems.require(device.empty() || device == "cpu" || device == "cuda", "device", device, "must be cpu or cuda");
  problems.require(precision.empty() || precision == "fp64" || precision == "fp32" || precision == "bf16", "precision",
                   precision, "must be fp64, fp32 or bf16");
  problems.require(options.batch >= 0 && options.batch <= 65536, "batch", options.batch, "must be 0 to 65536");
  problems.require(options.threads >= 0, "threads", options.threads, "must be at least 0");
  problems.throw_if_any("megalith_open");
  InferenceOptions asked{.checkpoint = checkpoint, .device = device, .precision = precision, .settings = {}};
  asked.ranks = 1;
  asked.batch = options.batch;
  if (options.threads > 0) asked.settings.push_back(str("device.threads=", options.threads));
  return asked;
}

std::string describe(const LoadedModel& model) {
  const config::RunPlan& plan = model.job().plan();
  const nlohmann::ordered_json json = {
      {"checkpoint", model.job().folder().string()},
      {"parameters", model::count_parameters(plan.model) - model::count_padding(plan.model)},
      {"vocab_size", plan.model.vocab_size},
      {"seq_len", plan.model.seq_len},
      {"tokenizer", plan.data.tokenizer},
      {"end_of_document", model.tokenizer().end_of_document()},
      {"precision", plan.train.precision},
      {"device", name_of(plan.device)}};
  return json.dump();
}

void log_probabilities(LoadedModel& model, const std::int32_t* ids, std::span<const std::size_t> lengths, double* out) {
  std::vector<std::span<const std::int32_t>> lists;
  std::size_t begin = 0;
  for (const std::size_t length : lengths) {
    lists.emplace_back(ids + begin, length);
    begin += length;
  }
  for (const std::vector<double>& list : model.log_probabilities(lists)) {
    *out++ = std::numeric_limits<double>::quiet_NaN();
    out = std::copy(list.begin(), list.end(), out);
  }
}

eval::GenerateOptions generate_options(const megalith_generation& asked, const LoadedModel& model) {
  return {.max_tokens = asked.max_tokens,
          .temperature = asked.temperature,
          .top_k = asked.top_k,
          .top_p = asked.top_p,
          .seed = asked.seed,
          .stop_token = asked.stop_token == kEndOfDocument ? model.tokenizer().end_of_document() : asked.stop_token,
          .slide = asked.slide};
}

}  // namespace
}  // namespace megalith::apps

using namespace megalith;        // NOLINT(google-build-using-namespace): the functions of C have no namespace
using namespace megalith::apps;  // NOLINT(google-build-using-namespace)

const char* megalith_version(void) { return version(); }

const char* megalith_error(void) { return last_error.c_str(); }

void megalith_free(void* memory) { std::free(memory); }

int megalith_open(const char* checkpoint, const megalith_options* options, megalith_model** model) {
  return guarded([&] {
    require_argument(checkpoint, "checkpoint");
    require_argument(model, "model");
    megalith_options given = {};
    if (options != nullptr) {
      require_size(options->size, sizeof(megalith_options), "megalith_options");
      given = *options;
    }
    *model = new megalith_model{{inference_options(checkpoint, given), text_or_empty(given.vocab_dir)}};
  });
}

void megalith_close(megalith_model* model) { delete model; }

int megalith_describe(const megalith_model* model, char** json) {
  return guarded([&] {
    require_argument(model, "model");
    require_argument(json, "json");
    const std::string text = describe(model->loaded);
    *json = copy_for_caller(text.c_str(), text.size() + 1);
  });
}

int megalith_encode(const megalith_model* model, const char* text, size_t bytes, int32_t** ids, size_t* count) {
  return guarded([&] {
    require_argument(model, "model");
    require_argument(ids, "ids");
    require_argument(count, "count");
    if (bytes > 0) require_argument(text, "text");
    const std::vector<std::int32_t> found = model->loaded.tokenizer().encode({text, bytes});
    *ids = copy_for_caller(found.data(), found.size());
    *count = found.size();
  });
}

int megalith_decode(const megalith_model* model, const int32_t* ids, size_t count, char** text, size_t* bytes) {
  return guarded([&] {
    require_argument(model, "model");
    require_argument(text, "text");
    require_argument(bytes, "bytes");
    if (count > 0) require_argument(ids, "ids");
    const std::string found = model->loaded.tokenizer().decode({ids, count});
    *text = copy_for_caller(found.c_str(), found.size() + 1);
    *bytes = found.size();
  });
}

int megalith_log_probabilities(megalith_model* model, const int32_t* ids, const size_t* lengths, size_t lists,
                               double* log_probabilities_out) {
  return guarded([&] {
    require_argument(model, "model");
    if (lists == 0) return;
    require_argument(ids, "ids");
    require_argument(lengths, "lengths");
    require_argument(log_probabilities_out, "log_probabilities");
    log_probabilities(model->loaded, ids, {lengths, lists}, log_probabilities_out);
  });
}

void megalith_generation_defaults(megalith_generation* options) {
  const eval::GenerateOptions usual;
  *options = {.size = sizeof(megalith_generation),
              .max_tokens = usual.max_tokens,
              .temperature = usual.temperature,
              .top_k = usual.top_k,
              .top_p = usual.top_p,
              .seed = usual.seed,
              .sample = 0,
              .slide = usual.slide,
              .stop_token = kEndOfDocument};
}

int megalith_generate(megalith_model* model, const int32_t* prompt, size_t count, const megalith_generation* options,
                      megalith_token* take, void* user) {
  return guarded([&] {
    require_argument(model, "model");
    require_argument(prompt, "prompt");
    require_argument(reinterpret_cast<const void*>(take), "take");
    megalith_generation given;
    megalith_generation_defaults(&given);
    if (options != nullptr) {
      require_size(options->size, sizeof(megalith_generation), "megalith_generation");
      given = *options;
    }
    model->loaded.generate({.prompt = {prompt, prompt + count}, .sample = given.sample},
                           generate_options(given, model->loaded),
                           [&](std::int32_t id) { return take(id, user) == 0; });
  });
}
