/* What reads bytes of others, as targets for libFuzzer (ci/fuzz): one program has them all, and is told which by the
 * variable FUZZ_TARGET. In an ordinary build the same targets try the inputs that were found (tests/fuzz/found). */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "oracle/base/status.h"

/* What is at hand for making seeds: each goes to a file of the corpus. */
typedef struct fuzz_corpus {
    const char *folder;
    int count;
} fuzz_corpus;
void fuzz_seed(fuzz_corpus *corpus, const void *data, size_t size);
void fuzz_seed_text(fuzz_corpus *corpus, const char *text);

typedef struct fuzz_target {
    const char *name;
    /* Ends the process where what it tried is wrong. */
    void (*try)(const uint8_t *data, size_t size);
    void (*seeds)(fuzz_corpus *corpus);
    bool lines; /* inputs are texts in lines: mutated by lines and words, too */
} fuzz_target;

extern const fuzz_target fuzz_case_yaml, fuzz_case_set, fuzz_profile_yaml, fuzz_model, fuzz_known, fuzz_weights_index,
    fuzz_weights, fuzz_safetensors, fuzz_hdf5, fuzz_request, fuzz_candidate, fuzz_served, fuzz_parcel, fuzz_program;
extern const fuzz_target *const fuzz_targets[];
const fuzz_target *fuzz_target_by_name(const char *name); /* NULL: there is none */

/* Ends the process with a line about `what`, unless it is as it must be. */
void fuzz_require(bool holds, const char *what);
/* What failed said in one line why, and did not call it an internal error: input cannot cause one. */
void fuzz_check(const assay_context *ctx, assay_status status);

/* A context of one thread. */
assay_context fuzz_context(void);
/* A file of this name with these bytes, in a folder that goes with the process. */
const char *fuzz_file(const char *name, const void *data, size_t size);
const char *fuzz_path(const char *name);
/* The file's bytes, in memory of their size, so that a sanitizer sees what is read behind them; to be freed. */
uint8_t *fuzz_read(const char *path, size_t *size);
/* Ends in a zero; to be freed. */
char *fuzz_text(const uint8_t *data, size_t size);

/* Numbers of an input that describes something: zeros where it has ended. */
typedef struct fuzz_bytes {
    const uint8_t *at, *end;
} fuzz_bytes;
unsigned fuzz_byte(fuzz_bytes *bytes);
int fuzz_below(fuzz_bytes *bytes, int most);
int64_t fuzz_number(fuzz_bytes *bytes); /* small ones, and those at the edges of types */
/* The next bytes, at most `most`; *size says how many. */
const uint8_t *fuzz_consume(fuzz_bytes *bytes, size_t most, size_t *size);
void fuzz_consume_text(fuzz_bytes *bytes, char *text, size_t size); /* no zeros in it */
