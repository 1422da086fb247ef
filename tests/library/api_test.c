/* The C API on tests/data/choice/model: `api_test CHOICE_FOLDER`. Prints what is wrong, and exits 1. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "megalith.h"

static int failures = 0;

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "failed: %s; the latest error: %s\n", what, megalith_error());
  ++failures;
}

typedef struct {
  int32_t ids[8];
  int count, most;
} taken;

static int take(int32_t id, void* user) {
  taken* all = (taken*)user;
  all->ids[all->count++] = id;
  return all->count == all->most;
}

static void check_errors(const char* folder) {
  megalith_model* model = NULL;
  megalith_options options = {0};
  expect(megalith_open("/no/such/folder", NULL, &model) == 65, "a missing folder is bad input");
  expect(strstr(megalith_error(), "/no/such/folder") != NULL, "the error names it");
  expect(model == NULL, "nothing is written after an error");
  expect(megalith_open(folder, &options, &model) == 64, "options without their size are refused");
  expect(strstr(megalith_error(), "megalith_options.size = 0: must be") != NULL, "by name");
  options.size = sizeof options;
  options.device = "tpu";
  options.precision = "int3";
  expect(megalith_open(folder, &options, &model) == 64, "unknown values are refused");
  expect(strstr(megalith_error(), "device = tpu") && strstr(megalith_error(), "precision = int3"), "all together");
  expect(megalith_open(NULL, NULL, &model) == 64, "NULL is refused");
}

static void check_tokens(megalith_model* model) {
  const char* const text = "The sky on a clear day is blue, caf\xC3\xA9";
  int32_t* ids = NULL;
  size_t count = 0, bytes = 0;
  char* back = NULL;
  expect(megalith_encode(model, text, strlen(text), &ids, &count) == 0 && count > 0, "a text is encoded");
  expect(megalith_decode(model, ids, count, &back, &bytes) == 0, "ids are decoded");
  expect(back != NULL && bytes == strlen(text) && strcmp(back, text) == 0, "to the same text");
  megalith_free(ids);
  megalith_free(back);
  expect(megalith_encode(model, "\xFF", 1, &ids, &count) == 65, "what is not UTF-8 is refused");
}

/* -25.839218... is what lm-evaluation-harness has for " blue" (tests/data/choice/expected.json). */
static void check_log_probabilities(megalith_model* model) {
  const char* const texts[2] = {"The sky on a clear day is", "The sky on a clear day is blue"};
  int32_t* ids[2] = {NULL, NULL};
  size_t counts[2] = {0, 0};
  int i;
  for (i = 0; i < 2; ++i)
    expect(megalith_encode(model, texts[i], strlen(texts[i]), &ids[i], &counts[i]) == 0, "a text is encoded");
  {
    int32_t both[128];
    double found[128];
    double blue = 0;
    size_t k;
    memcpy(both, ids[0], counts[0] * sizeof(int32_t));
    memcpy(both + counts[0], ids[1], counts[1] * sizeof(int32_t));
    expect(megalith_log_probabilities(model, both, counts, 2, found) == 0, "two lists are scored");
    expect(isnan(found[0]) && isnan(found[counts[0]]), "the first of each has nothing before it");
    for (k = counts[0]; k < counts[1]; ++k) blue += found[counts[0] + k];
    expect(fabs(blue + 25.839218139648438) < 1e-3, "the sum is that of the reference");
    for (k = 1; k < counts[0]; ++k)
      expect(fabs(found[k] - found[counts[0] + k]) < 1e-4, "equal tokens have equal numbers");
    both[1] = 1 << 20;
    expect(megalith_log_probabilities(model, both, counts, 1, found) == 65, "ids outside the vocabulary are refused");
    expect(strstr(megalith_error(), "list 0, id 1 = 1048576: must be from 0 to") != NULL, "by name");
  }
  megalith_free(ids[0]);
  megalith_free(ids[1]);
}

static void check_generation(megalith_model* model) {
  const int32_t prompt[3] = {1, 2, 3};
  megalith_generation options;
  taken a = {{0}, 0, 5}, b = {{0}, 0, 3};
  megalith_generation_defaults(&options);
  options.temperature = 0;
  options.max_tokens = 5;
  options.stop_token = -1;
  expect(megalith_generate(model, prompt, 3, &options, take, &a) == 0 && a.count == 5, "five tokens are drawn");
  expect(megalith_generate(model, prompt, 3, &options, take, &b) == 0 && b.count == 3, "the caller ends a text");
  expect(memcmp(a.ids, b.ids, 3 * sizeof(int32_t)) == 0, "the likeliest tokens are the same again");
  options.top_p = 2;
  options.slide = 0;
  expect(megalith_generate(model, prompt, 3, &options, take, &a) == 64, "options out of bounds are refused");
  expect(strstr(megalith_error(), "top_p = 2") && strstr(megalith_error(), "slide = 0"), "all together");
}

int main(int count, char** arguments) {
  char folder[4096];
  megalith_model* model = NULL;
  megalith_options options = {0};
  char* json = NULL;
  if (count != 2) return 2;
  snprintf(folder, sizeof folder, "%s/model", arguments[1]);
  expect(strstr(megalith_version(), "megalith ") == megalith_version(), "there is a version");
  expect(strcmp(megalith_error(), "") == 0, "there is no error yet");
  check_errors(folder);
  options.size = sizeof options;
  options.device = "cpu";
  options.threads = 1;
  if (megalith_open(folder, &options, &model) != 0) {
    fprintf(stderr, "failed: a model is opened: %s\n", megalith_error());
    return 1;
  }
  expect(megalith_describe(model, &json) == 0 && strstr(json, "\"seq_len\":160") != NULL, "it is described");
  megalith_free(json);
  check_tokens(model);
  check_log_probabilities(model);
  check_generation(model);
  megalith_close(model);
  megalith_close(NULL);
  return failures == 0 ? 0 : 1;
}
