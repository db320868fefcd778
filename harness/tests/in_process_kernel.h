/* What tests of <assay/test.h> share: a test that is opened, and kernels for it. */
#pragma once

#include <assay/test.h>

#include "harness/tests/harness_test.h"

enum { MOST_RESULTS = 256 };

extern char said[ASSAY_TEST_MESSAGE];

#define assert_done(call) assay_assert_ok((call), said, #call, __FILE__, __LINE__)

/* What was asked for is refused, with a line that says so. */
#define assert_refused(call, message)                                                                                  \
    do {                                                                                                               \
        assert_int_equal((call), ASSAY_TEST_BAD_INPUT);                                                                \
        if (strstr(said, message) == NULL) fail_msg("%s: \"%s\" expected in: %s", #call, message, said);               \
    } while (0)

/* What a kernel gives: by default the golden's numbers in a narrower type, and all of them. */
typedef struct kernel {
    assay_test *test;
    assay_backend_tensor results[MOST_RESULTS];
    int count;
} kernel;

/* For OWNED_BY. */
static inline void close_test(assay_test **test)
{
    assay_test_close(*test);
}

assay_test *open_with(const char *what, const assay_test_options *options);
int64_t count_of(const assay_backend_tensor *tensor);
/* The golden's results in a type, by kernels that err nowhere else; what a router gives, and statistics, in float32 at least. */
void run_kernel(kernel *k, assay_test *test, assay_dtype storage);
void free_results(kernel *k);
assay_backend_tensor *result_of(kernel *k, const char *path);
/* Of a kernel in bfloat16. */
const char *verdict_with(const char *what, const assay_test_options *options);
