/* assay in a test of your own, without files: open a case, take its inputs, run your kernel, have the results judged.
 *
 *     assay_test *test;
 *     char message[ASSAY_TEST_MESSAGE];
 *     if (assay_test_open("moe/mixtral", NULL, &test, message) != ASSAY_TEST_OK) ...
 *     for (int i = 0; i < assay_test_given_count(test); i++) assay_test_given(test, i, &tensor, message) ...
 *     my_kernel(...);
 *     assay_test_check(test, count, results, &report, message);
 *     if (assay_test_report_verdict(report) != ASSAY_TEST_PASS) puts(assay_test_report_text(report, 0, 0, message));
 *
 * Link libassay (`pkg-config --cflags --libs assay`, or find_package(assay) and assay::assay). C and C++. Tensors are those of
 * <assay/backend.h>: little-endian, row-major, bfloat16 and narrower as raw bits. What a function gives out belongs to the test or
 * the report and lives as long; a report may outlive its test. Threads may share tests and
 * reports: the calls of one test and its reports take turns, and those of two tests run side by side. What closes a test or frees a
 * report comes last. `message` may be NULL where nobody reads it. Another NULL is refused: ASSAY_TEST_BAD_INPUT, or NULL, "" or 0 of what has no
 * status. docs/your-kernel.md. */
#ifndef ASSAY_TEST_H
#define ASSAY_TEST_H

#include <stddef.h>
#include <stdint.h>

#include "assay/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ASSAY_TEST_MESSAGE = 512 };

/* What a call returns: the exit statuses of the program. */
enum { ASSAY_TEST_OK = 0, ASSAY_TEST_BAD_INPUT = 2 };

/* A verdict, in the order of the program's. */
enum { ASSAY_TEST_PASS = 0, ASSAY_TEST_FAIL = 1, ASSAY_TEST_VACUOUS = 2, ASSAY_TEST_NOT_COMPARABLE = 3 };

/* Zeroed is right for all of it. */
typedef struct assay_test_options {
    const char *const *sets; /* "sequence=17", "sparse_matmul=true": as --set; not with a golden */
    int32_t set_count;
    int32_t threads;       /* of the oracle; 0: all cores. Small cases take one */
    const char *precision; /* a profile's name or YAML file; NULL: that of the case's grid */
    double false_alarm;    /* 0: as the program */
    const char *cache;     /* folder of goldens; NULL: $ASSAY_CACHE, else assay/ in the user's cache folder; "": none */
    int64_t cache_bytes; /* goldens beyond that go, those used least lately first; 0: $ASSAY_CACHE_BYTES, else 2 GiB */
    int32_t no_explanation; /* a failure is not held against the known bugs */
    int32_t only_count;
    const char *const
        *only;           /* globs of the outputs and gradients that must be given, of others none need be; NULL: all */
    const char *inputs;  /* file with inputs, weights and cotangents, any of them, as --inputs; NULL: all are drawn */
    const char *weights; /* checkpoint with the weights, FILE or FILE:PREFIX as --weights; NULL: they are drawn */
    int32_t staged;   /* checkpoints that are given are judged as --staged: each from the results' own inputs to it */
    int32_t unscaled; /* goldens have no error scales, and take a fraction of the time: nothing is judged by them */
} assay_test_options;

typedef struct assay_test assay_test;
typedef struct assay_test_report assay_test_report;

/* `what`: a name of the catalogue, the text of a case file (it has a line break), or the path of a case file or a golden (.h5,
 * .safetensors). Refuses what the program refuses, with its message. Nothing is evaluated yet. */
int assay_test_open(const char *what, const assay_test_options *options, assay_test **test,
                    char message[ASSAY_TEST_MESSAGE]);
void assay_test_close(assay_test *test); /* NULL is safe */

const char *assay_test_name(const assay_test *test);
const char *assay_test_op(const assay_test *test);
const char *assay_test_yaml(const assay_test *test);      /* the whole case */
const char *assay_test_precision(const assay_test *test); /* the profile that it will be judged at */

/* The configuration, as a shared object gets it (assay_backend_request). */
int32_t assay_test_setting_count(const assay_test *test);
const assay_backend_setting *assay_test_setting(const assay_test *test, int32_t index);

/* Inputs, weights and cotangents. The first call of assay_test_given for a path draws it. */
int32_t assay_test_given_count(const assay_test *test);
int assay_test_given(assay_test *test, int32_t index, assay_backend_tensor *tensor, char message[ASSAY_TEST_MESSAGE]);

/* What may be given to be judged; required are outputs and gradients. `data` is NULL. */
int32_t assay_test_expected_count(const assay_test *test);
const assay_backend_result *assay_test_expected(const assay_test *test, int32_t index);

/* Evaluates the golden, or finds it in the cache (a second call does nothing). assay_test_check does so by itself. */
int assay_test_prepare(assay_test *test, char message[ASSAY_TEST_MESSAGE]);
/* The golden tensor of a path, in float64 (int32 for indices). */
int assay_test_golden(assay_test *test, const char *path, assay_backend_tensor *tensor,
                      char message[ASSAY_TEST_MESSAGE]);
/* What each element of a float result may be off by where assay_test_check judges it: `count` numbers, as many as the result
 * has. */
int assay_test_threshold(assay_test *test, const char *path, double *thresholds, int64_t count,
                         char message[ASSAY_TEST_MESSAGE]);
/* Writes the golden as `assay generate` does; the ending of the path says the format. */
int assay_test_save(assay_test *test, const char *path, char message[ASSAY_TEST_MESSAGE]);

/* Judges results, each in the type in which the kernel left it; indices are int32 (convert int64 first). They are copied. A wrong
 * shape, a missing or unknown path and NaN are findings of the report; ASSAY_TEST_BAD_INPUT is for what cannot be judged at all
 * (a type that is none, a path twice, rank above 6). */
int assay_test_check(assay_test *test, int32_t count, const assay_backend_tensor *results, assay_test_report **report,
                     char message[ASSAY_TEST_MESSAGE]);
void assay_test_report_free(assay_test_report *report); /* NULL is safe */

int assay_test_report_verdict(const assay_test_report *report);
const char *assay_test_report_message(const assay_test_report *report);     /* one line: the first wrong tensor */
const char *assay_test_report_first_wrong(const assay_test_report *report); /* its path; "" */
/* Names of the known bugs that give these results, with commas between; "". */
const char *assay_test_report_bugs(const assay_test_report *report);
/* The forms of the program; NULL and a message where memory is short. `html` draws pictures. Each is made when it is first asked for. */
const char *assay_test_report_text(assay_test_report *report, int verbose, int color, char message[ASSAY_TEST_MESSAGE]);
const char *assay_test_report_json(assay_test_report *report, char message[ASSAY_TEST_MESSAGE]);
const char *assay_test_report_html(assay_test_report *report, char message[ASSAY_TEST_MESSAGE]);

/* The catalogue: names that match one of `count` globs (0: all of them) and have none of the `exclude_count` tags, operations or
 * globs. One allocated text, a name a line; free it with assay_test_free. A glob that matches nothing is refused, and a word
 * that no case has. */
int assay_test_cases(int32_t count, const char *const *globs, int32_t exclude_count, const char *const *exclude,
                     char **names, char message[ASSAY_TEST_MESSAGE]);
void assay_test_free(char *text);
/* "0.2.0 (commit 9151ddc6b7aa, avx512)", as `assay --version`; without the commit where it is not known. */
const char *assay_test_version(void);

#ifdef __cplusplus
}
#endif

#endif
