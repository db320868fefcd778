/* What the files of <assay/test.h> share. */
#pragma once

#include <assay/test.h>
#include <fenv.h>
#include <pthread.h>

#include "harness/plan/backend_view.h"
#include "harness/plan/golden_open.h"
#include "harness/plan/inputs.h"

enum { ASSAY_MOST_THREADS = 1024 };

/* Held by its test and by every report that was made with it, whose calls take turns. */
typedef struct assay_cached_golden {
    pthread_mutex_t turn;
    bool open; /* the golden is there */
    assay_golden golden;
    int users;
} assay_cached_golden;

assay_status assay_cached_golden_make(assay_context *ctx, assay_cached_golden **held);
void assay_cached_golden_release(assay_cached_golden *held); /* NULL is safe */

struct assay_test {
    assay_context ctx; /* without a message: each call has a copy */
    char *yaml;        /* the whole case */
    assay_case *cases; /* one, with the profile that is judged at and no other; of a golden that was given: its own */
    int case_count;
    assay_plan plan; /* of it */
    assay_profile profile;
    double false_alarm;
    bool unexplained, staged;
    char **only; /* [only_count] */
    int only_count;
    char *path; /* of a golden that was given; NULL */
    char *cache;
    int64_t cache_bytes;
    assay_cached_golden *held;
    char *inputs_path;  /* of the user's own; NULL */
    char *weights_text; /* of a checkpoint; NULL */
    assay_inputs inputs;
    assay_backend_settings settings;
    const assay_tensor_spec **given_specs;
    assay_backend_tensor *given, *results; /* results: the golden's, as [expected_count] */
    assay_backend_result *expected;
    int given_count, expected_count;
};

const assay_case *assay_test_case(const assay_test *test);

/* Of a call that was given NULL where `what` is expected. */
int assay_test_refuse_null(const char *what, char *message);

/* Evaluates the golden or finds it, in this test's turn. */
assay_status assay_test_open_golden(assay_context *ctx, assay_test *test);

/* A call of the user's. Floats behave as goldens need it, in the calling thread and in those that work with it: rounded to
 * nearest, without flush to zero or traps; else they would have other bits. The golden is one call's at a time. */
typedef struct assay_test_call {
    assay_context ctx;
    assay_cached_golden *held;
    int threads;
    fenv_t before[ASSAY_MOST_THREADS]; /* the user's, of each thread */
} assay_test_call;

/* held: NULL where no golden is used. */
void assay_test_begin(assay_test_call *call, const assay_context *ctx, int threads, assay_cached_golden *held);
/* What the call returns to the user, and its message. */
int assay_test_end(assay_test_call *call, assay_status status, char *message);
