#pragma once
#include "apps/finetune/finetune_request.h"

namespace megalith::apps {

/// Trains and scores what job.out does not hold yet, writes its report.json and report.md, and prints a summary. Ranks
/// are threads of this process. Call catch_stop_signals() before. Throws StoppedError if a signal ended it; the same
/// job then goes on. Throws ConfigError if job.out holds runs of another recipe or other data, and the errors of
/// training and evaluation.
void finetune(const FinetuneJob& job, const FinetuneOptions& options);

}  // namespace megalith::apps
