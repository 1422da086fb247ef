#include "megalith/base/error.h"
#include "megalith/tokenizer/sentencepiece.h"

// Compiled if the sentencepiece library is missing.
namespace megalith::tokenizer {
namespace {

[[noreturn]] void throw_no_sentencepiece() {
  throw ConfigError(
      "tokenizer = \"sentencepiece\": this program was built without the sentencepiece library; install "
      "libsentencepiece-dev and build again (CMake prints whether it was found)");
}

}  // namespace

std::shared_ptr<const Tokenizer> load_sentencepiece(io::Fs&, const io::Path&) { throw_no_sentencepiece(); }

TrainedTokenizer train_sentencepiece(const TrainerOptions&, const CountWords&) { throw_no_sentencepiece(); }

}  // namespace megalith::tokenizer
