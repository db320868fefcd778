/* A request made by hand, what the backend under test writes for it, and how far that is from float64. */
#ifndef ASSAY_EXAMPLE_TESTS_BACKEND_TRIAL_H
#define ASSAY_EXAMPLE_TESTS_BACKEND_TRIAL_H

#include <assay/backend.h>

#include "tests/support/assay_test.h"

enum { TRIAL_MOST = 64 };

typedef struct trial_tensor {
    char path[96];
    int64_t dims[4];
    int32_t rank;
    assay_backend_type type;
    double *values; /* an input in float64; NULL for a result */
    void *data;     /* as the backend sees it; 64-byte aligned, room for float64 */
    bool required, written;
} trial_tensor;

typedef struct trial {
    assay_backend_setting settings[TRIAL_MOST];
    trial_tensor inputs[TRIAL_MOST], outputs[TRIAL_MOST];
    int setting_count, input_count, output_count;
    uint32_t random_state;
    char message[512];
} trial;

trial *trial_new(void);
void trial_free(trial *t);
void trial_set(trial *t, const char *key, const char *value); /* the last value counts; not copied */

/* Random multiples of 1/64 (of size / 8 where that is less) within `size` of `center`, exact in bfloat16, and the
 * result gradients/<path> if differentiated. */
void trial_input(trial *t, const char *path, double center, double size, bool differentiated, int32_t rank,
                 const int64_t *dims);
void trial_integers(trial *t, const char *path, int32_t rank, const int64_t *dims, const int32_t *values);
void trial_output(trial *t, const char *path, bool required, int32_t rank, const int64_t *dims);

trial_tensor *trial_find_input(trial *t, const char *path); /* NULL: there is none */
trial_tensor *trial_find_output(trial *t, const char *path);
int64_t trial_count(const trial_tensor *t);
bool trial_is_index(const char *path);

/* Results are NaN beforehand. */
int trial_run(trial *t, int (*run)(const assay_backend_request *));
double trial_value(const trial_tensor *t, int64_t i);

/* |error| / |expected| over the elements; infinite where one is not finite. */
double trial_distance(const trial_tensor *o, const double *expected);
/* The same for a gradient over a sample of its elements, expected from central differences of `objective`. */
double trial_gradient_distance(trial *t, const trial_tensor *o, double (*objective)(trial *t), int samples);

#endif
