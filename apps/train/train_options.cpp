#include "apps/train/train_options.h"

#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

/// The value of --resume.
train::Resume parse_resume(const std::string& text) {
  if (text.empty() || text == "true") return train::Resume::required;
  if (text == "auto") return train::Resume::automatic;
  throw ConfigError(str("--resume = ", text, ": must be --resume or --resume=auto"));
}

}  // namespace

void TrainOptions::add_to(CLI::App& command) {
  request_.recipe.add_to(command);
  out_ = command.add_option("--out", request_.out,
                            "Folder for metrics, checkpoints and the resolved recipe (default: out/RECIPE)");
  command.add_option(
      "--gemm-table", request_.gemm_table,
      "Use the GEMM algorithms of an earlier run on such a GPU (its OUT/gemm_table.json): the same bits");
  command.add_option("--trace", request_.trace,
                     "Write the times of all ops and communication calls of steps 3 to 5, on all ranks and by one "
                     "clock, to a file that Perfetto opens");
  command.add_option("--router-trace", request_.router_trace,
                     "Write which experts every token was sent to; moe.replay = FILE repeats these decisions");
  resume_flag_ = command.add_flag("--resume{}", resume_,
                                  "Go on from the newest valid checkpoint in OUT; --resume=auto: start fresh where "
                                  "there is none");
}

TrainRequest TrainOptions::request() const {
  if (out_->count() > 0 && request_.out.empty())
    throw ConfigError("--out = \"\": must name a folder; leave it away for out/RECIPE");
  TrainRequest request = request_;
  if (resume_flag_->count() > 0) request.resume = parse_resume(resume_);
  return request;
}

std::vector<std::string> TrainOptions::words() const {
  std::vector<std::string> words = {request_.recipe.file};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) words.push_back(str(option, '=', value));
  };
  for (const std::string& setting : request_.recipe.settings) add("--set", setting);
  if (request_.recipe.ranks > 0) add("--ranks", str(request_.recipe.ranks));
  add("--out", request_.out);
  add("--gemm-table", request_.gemm_table);
  add("--trace", request_.trace);
  add("--router-trace", request_.router_trace);
  return words;
}

}  // namespace megalith::apps
