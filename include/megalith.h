/* The C API of megalith: load a saved model, tokenise, get the log-probabilities of tokens, generate. Link with
 * -lmegalith. docs/python.md describes it and its Python package.
 *
 * Errors. A function that can fail returns 0, or the exit code that the program would have (docs/errors.md: 64 usage,
 * 65 bad input, 66 and 67 checkpoints, 70 internal, 74 system). megalith_error() is then the error's text. Results are
 * written on success only.
 *
 * Threads. Any thread may call any function. Calls that compute with one model (megalith_log_probabilities,
 * megalith_generate) wait for each other: a model has a thread of its own, which runs them one after another.
 * megalith_encode and megalith_decode do not wait. No other call for a model may run during its megalith_close(). A
 * process that has opened a model must not fork() and use it in the child.
 *
 * Memory. What a function returns through a `**` belongs to the caller: megalith_free() frees it. */
#ifndef MEGALITH_H
#define MEGALITH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A saved model for inference, on one CPU or GPU. */
typedef struct megalith_model megalith_model;

/* How a model is opened. Set all to zero but `size`, then what differs. */
typedef struct megalith_options {
  size_t size;           /* sizeof(megalith_options) */
  const char* device;    /* "cpu", "cuda"; NULL: as trained, imported models on a GPU where there is one */
  const char* precision; /* "fp64", "fp32", "bf16"; NULL: fp32 on CPUs, bf16 on GPUs */
  const char* vocab_dir; /* the folder of the tokenizer's files; NULL: the checkpoint's own */
  int64_t batch;         /* lists of ids that one pass takes; 0: 4 on CPUs, 16 on GPUs */
  int64_t threads;       /* CPU threads; 0: all cores */
} megalith_options;

/* How a text is continued. megalith_generation_defaults() fills it. */
typedef struct megalith_generation {
  size_t size;        /* sizeof(megalith_generation) */
  int64_t max_tokens; /* 100 */
  double temperature; /* 1; 0: always the likeliest token */
  int64_t top_k;      /* draw among the k likeliest; 0: among all */
  double top_p;       /* draw among the fewest whose probabilities reach it; 1: among all */
  uint64_t seed;      /* same seed, sample and prompt: same text */
  int64_t sample;     /* the number of the text among several of one prompt */
  int64_t slide;      /* tokens that a full window loses at its beginning; 1 */
  int32_t stop_token; /* ends the text; -1: none. By default the token that ends documents: -2 */
} megalith_generation;

/* The version of the library: "megalith 0.1.0, COMMIT". */
const char* megalith_version(void);

/* The text of this thread's latest error; "" if there was none. Valid until the next call of this thread. */
const char* megalith_error(void);

void megalith_free(void* memory);

/* Opens a checkpoint: a step folder, a folder of steps, the OUT of a run, or a Hugging Face folder. Models that predict
 * the next token only. Values are read at the first computation: once for log-probabilities and once for generation,
 * and each takes memory for the parameters. `options` may be NULL. */
int megalith_open(const char* checkpoint, const megalith_options* options, megalith_model** model);

/* Waits for calls in progress, and frees all of the model. NULL is allowed. */
void megalith_close(megalith_model* model);

/* A JSON object: checkpoint, parameters, vocab_size, seq_len, tokenizer, end_of_document, precision, device. */
int megalith_describe(const megalith_model* model, char** json);

/* The ids of a text in UTF-8, of `bytes` bytes. No id is added. */
int megalith_encode(const megalith_model* model, const char* text, size_t bytes, int32_t** ids, size_t* count);

/* The bytes of ids, with a zero byte after them that does not count. They need not be UTF-8. */
int megalith_decode(const megalith_model* model, const int32_t* ids, size_t count, char** text, size_t* bytes);

/* ln p of each token given those before it in its list; NaN for the first of each. `ids` has the lists one after
 * another, `lengths` [lists] their lengths, each 1 to seq_len. Writes as many numbers as there are ids. */
int megalith_log_probabilities(megalith_model* model, const int32_t* ids, const size_t* lengths, size_t lists,
                               double* log_probabilities);

void megalith_generation_defaults(megalith_generation* options);

/* Takes a new token. Another value than 0 ends the text. It is called by the thread of the model while
 * megalith_generate() waits, and must not call functions that compute with this model. */
typedef int megalith_token(int32_t id, void* user);

/* Continues a prompt of 1 to seq_len ids, and calls take() for each new one, also for a stop token. `options` may be
 * NULL. */
int megalith_generate(megalith_model* model, const int32_t* prompt, size_t count, const megalith_generation* options,
                      megalith_token* take, void* user);

#ifdef __cplusplus
}
#endif
#endif
