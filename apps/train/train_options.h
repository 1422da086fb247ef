#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/train/train_job.h"

namespace megalith::apps {

/// The options of commands that train: those of a request, and how it resumes.
class TrainOptions {
 public:
  /// Adds them to a command. They must outlive the parsing.
  void add_to(CLI::App& command);
  /// As given on the command line. Throws ConfigError for values that cannot be.
  TrainRequest request() const;
  /// The words of a command line that gives the same request to `train`, without "--resume".
  std::vector<std::string> words() const;

 private:
  TrainRequest request_;
  std::string resume_;
  CLI::Option *out_ = nullptr, *resume_flag_ = nullptr;
};

}  // namespace megalith::apps
