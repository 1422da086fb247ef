#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/types.h"

namespace megalith::eval {

/// A WikiText file's text without the artefacts of its tokenisation: 24 replacements on the whole text, in the order of
/// the usual zero-shot scripts, so that results compare. White space in their patterns is ASCII. The table of them is
/// in docs/evaluation.md.
/// Source: NVIDIA/Megatron-LM, tasks/zeroshot_gpt/detokenizer.py; EleutherAI/lm-evaluation-harness,
/// lm_eval/tasks/wikitext.
std::string detokenize_wikitext(std::string_view text);

/// The way back, as WikiText writes: ` @-@ `, ` @,@ ` and ` @.@ ` within words and numbers, spaces around punctuation,
/// within brackets, quotes and headings, and at line ends.
std::string retokenize_wikitext(std::string_view text);

/// The number of places at which two texts differ: each longest run of white space and marks `@` between two other
/// characters is a place, and so is each other character. Both texts must have the same number of other characters;
/// else the shorter one's missing characters count, too.
Index count_differences(std::string_view a, std::string_view b);

/// The number of words of a text without white space at both ends, split on single spaces. This is WikiText's own count
/// (T_o), to which a line end belongs.
Index count_words(std::string_view stripped);
/// ASCII white space at both ends is cut.
std::string_view strip(std::string_view text);

/// The documents of a raw WikiText file: a new one begins at each heading of level 1 (` = Title = `). A document keeps
/// its line ends, but for the one before the next. Text before the first heading is one, unless it is white space.
/// Source: the data set EleutherAI/wikitext_document_level.
std::vector<std::string_view> wikitext_documents(std::string_view text);
/// Pieces of a text between runs of white space, with the empty ones at both ends: len(re.split(r"\s+", text)).
Index count_split_words(std::string_view text);

}  // namespace megalith::eval
