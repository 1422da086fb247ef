#pragma once
#include <optional>
#include <span>

#include "megalith/base/types.h"
#include "megalith/data/chat_template.h"
#include "megalith/tokenizer/tokenizer.h"
#include "megalith/tokenizer/vocabulary_files.h"

namespace megalith::convert {

struct HfFamily;

/// A tokenizer to be written, beside a model of this family.
struct HfTokenizerExport {
  const tokenizer::Tokenizer& tokenizer;
  std::span<const tokenizer::VocabularyFile> files;  ///< of its vocabulary
  const HfFamily& family;
  Index seq_len = 0;                                     ///< positions of the model
  std::optional<data::ChatTemplate> chat_template = {};  ///< that the model was trained with
};

/// Writes into an existing folder, synced, what AutoTokenizer.from_pretrained() of the transformers library reads: the
/// vocabulary's files and tokenizer_config.json. Other families than GPT-2 also get a tokenizer.json with the contents
/// of vocab.json and merges.txt, or of vocab.txt: without it version 5 loads no tokenizer of a Mixtral. A
/// tokenizer.json of BERT's gets a vocab.txt, if that is read with the same options. GPT-2 gets one only if the end of
/// a document is not ASCII, as vocab.json then writes it otherwise. The byte tokenizer gets a tokenizer.json without
/// merges, whose ids are the bytes. The class of a sentencepiece model is told that texts begin and end with the end of
/// a document, as config.json has it (HfExport), and that no call adds one. A chat template becomes
/// chat_template.jinja, but not beside the byte tokenizer, which has no name for the end of a document.
///
/// The library's ids are then those of `tokenizer`, with two exceptions. It takes the name of the end of a document in
/// a text for that token (not with split_special_tokens=True). And its classes for a sentencepiece model do not
/// normalise text as the model does. Throws IoError.
void export_hf_tokenizer(io::Fs& fs, const io::Path& folder, const HfTokenizerExport& exported);

}  // namespace megalith::convert
