/* What tests share: headers that most of them need, cmocka, assertions on arrays of numbers that NaN cannot pass, and allocations that
 * fail on demand. cmocka's own assert_float_equal lets NaN pass, so numbers are held against each other here. */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "oracle/arithmetic/arithmetic.h"

/* A test: a function of cmocka's, which may leave its state alone. It registers itself. TEST_WITH: setup and teardown run before and
 * after it. */
#define TEST(name) TEST_WITH(name, NULL, NULL)
#define TEST_WITH(name, setup, teardown)                                                                               \
    static void name(void **);                                                                                         \
    __attribute__((constructor)) static void add_##name(void)                                                          \
    {                                                                                                                  \
        static assay_test test = {{#name, name, setup, teardown, NULL}, __FILE__, NULL};                               \
        assay_add_test(&test);                                                                                         \
    }                                                                                                                  \
    static void name(void **state __attribute__((unused)))

/* A test with `ctx`, of one thread. */
#define TEST_WITH_CONTEXT(name)                                                                                        \
    static void name##_with(assay_context);                                                                            \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        name##_with(assay_context_default(1));                                                                         \
    }                                                                                                                  \
    static void name##_with(assay_context ctx)

/* Words by which ctest -L chooses the tests of this file, for CMake, which reads them here; what they mean stands in ci/test. */
#define TEST_LABELS(...) _Static_assert(1, #__VA_ARGS__)

typedef struct assay_test {
    struct CMUnitTest test;
    const char *file;
    struct assay_test *next;
} assay_test;

void assay_add_test(assay_test *test);
/* Runs the tests of `file` (its name without folder and ending) that are called as one of `names`, in the order in which they stand
 * there: all of them where there is no name, those of every file where it is NULL. How many failed; where there is none, the program
 * ends. */
int assay_run_tests(const char *group, const char *file, char *const *names);

/* |actual - expected| <= absolute + relative * |expected| for every element; both infinite with one sign is equal, NaN
 * never is. Prints the worst element on failure. */
#define assert_close(actual, expected, count, relative, absolute)                                                      \
    assay_assert_close((actual), (expected), (count), (relative), (absolute), #actual, __FILE__, __LINE__)
/* The same bytes, NaN payloads and signs of zero included. */
#define assert_same_bits(actual, expected, count)                                                                      \
    assay_assert_same_bits((actual), (expected), (count), #actual, __FILE__, __LINE__)
#define assert_all_nan(actual, count) assay_assert_all_nan((actual), (count), #actual, __FILE__, __LINE__)
/* A call that must succeed, its message shown when it does not. */
#define assert_ok(ctx, call) assay_assert_ok((int)(call), (ctx)->message, #call, __FILE__, __LINE__)
/* A call that must be refused, in a message that has these words. */
#define assert_bad_input(ctx, call, words)                                                                             \
    assay_assert_bad_input((int)(call), (ctx)->message, (words), #call, __FILE__, __LINE__)

void assay_assert_close(const double *actual, const double *expected, int64_t count, double relative, double absolute,
                        const char *what, const char *file, int line);
void assay_assert_same_bits(const double *actual, const double *expected, int64_t count, const char *what,
                            const char *file, int line);
void assay_assert_all_nan(const double *actual, int64_t count, const char *what, const char *file, int line);
void assay_assert_ok(int status, const char *message, const char *what, const char *file, int line);
void assay_assert_bad_input(int status, const char *message, const char *words, const char *what, const char *file,
                            int line);

/* Whether assert_close would accept: for tables of what must be rejected. */
bool assay_is_close(const double *actual, const double *expected, int64_t count, double relative, double absolute);

/* Fills with NaN what a function is to write. */
void assay_fill_nan(double *values, int64_t count);

/* The next number of a sequence: any 64 bits, in [0,1), or roughly normal with standard deviation 1. */
uint64_t test_bits(uint64_t *seed);
double test_uniform(uint64_t *seed);
double test_normal(uint64_t *seed);

/* Each instruction set of this processor with 1, 2 and 7 threads, the plainest first:
 *     for (int form = 0; test_next_context(&form, &ctx); )
 * Everything else of `ctx` stays. */
bool test_next_context(int *form, assay_context *ctx);

/* The allocation number `n` (0: the next one) of this program's own code fails, once. -1: none fails.
 * Each in its turn, and what holds then:  int64_t n = 0; while (lacks_memory(&n, &ctx, f(&ctx))) assert_null(result); */
void assay_fail_allocation(int64_t n);
int64_t assay_allocations_left(void); /* before that one */
bool assay_allocation_failed(void);   /* whether the failure asked for last has happened */
/* Whether it has not, and none will: `status` must be ASSAY_OK then, else ASSAY_NO_MEMORY, of which a message tells. */
#define had_memory(ctx, status) assay_had_memory((int)(status), (ctx)->message, __FILE__, __LINE__)
bool assay_had_memory(int status, const char *message, const char *file, int line);
/* Whether the call lacks memory where allocation *n fails, which is the one after it then. */
#define lacks_memory(n, ctx, call) (assay_fail_allocation(*(n)), had_memory(ctx, call) ? false : ((*(n))++, true))

/* How many allocations of this program's own code are not freed: the same before and after what keeps nothing. */
int64_t assay_live_allocations(void);
/* Every byte that later allocations begin with, but for those of zeros: 0xff makes NaN of numbers. -1: what they happen to. */
void assay_fill_allocations(int byte);
