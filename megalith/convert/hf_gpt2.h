#pragma once
#include "megalith/io/fs.h"
#include "megalith/model/model_config.h"
#include "megalith/params/param_set.h"

namespace megalith::convert {

// GPT-2 as the transformers library keeps it (class GPT2LMHeadModel): a folder with config.json and model.safetensors.
// Its linear weights are [in, out], ours [out, in]; its attention.c_attn stacks all queries, all keys, all values, ours
// the query, key and value of head 0, then of head 1, and so on. The output layer is tied to the token table.
// Source: github.com/huggingface/transformers, models/gpt2 (names and layout).

/// The shape in FOLDER/config.json; dropout as it says. vocab_size is the model's own, not padded. Throws InputError
/// naming file, key, value and rule: also for a GPT-2 that megalith would compute otherwise (another activation,
/// another epsilon, untied embeddings, scaling by layer).
model::ModelConfig read_hf_gpt2_config(io::Fs& fs, const io::Path& folder);

/// Fills the parameters of a whole model on one rank from FOLDER/model.safetensors (F32, F16, BF16 or F64 there,
/// converted; f32 or f64 here). Throws InputError for tensors that are missing, left over or of another shape.
/// Memory: one tensor twice.
void import_hf_gpt2(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model, ParamBuffer& params);

/// Writes FOLDER/config.json and FOLDER/model.safetensors (F32), synced, into an existing folder. `end_of_document` is
/// the tokenizer's. from_pretrained() loads it.
void export_hf_gpt2(io::Fs& fs, const io::Path& folder, const model::ModelConfig& model, const ParamBuffer& params,
                    std::int32_t end_of_document);

}  // namespace megalith::convert
