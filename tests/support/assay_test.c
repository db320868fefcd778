#include "tests/support/assay_test.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static assay_test *first_test, **last_test = &first_test;

void assay_add_test(assay_test *test)
{
    *last_test = test;
    last_test = &test->next;
}

static bool is_file(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    return strlen(name) == strcspn(base, ".") && strncmp(base, name, strlen(name)) == 0;
}

static bool is_chosen(const assay_test *test, const char *file, char *const *names)
{
    if (file != NULL && !is_file(test->file, file)) return false;
    if (names == NULL || *names == NULL) return true;
    for (; *names != NULL; names++) {
        if (strcmp(*names, test->test.name) == 0) return true;
    }
    return false;
}

int assay_run_tests(const char *group, const char *file, char *const *names)
{
    enum { MOST = 1024 };
    static struct CMUnitTest chosen[MOST];
    size_t count = 0;
    for (const assay_test *t = first_test; t != NULL; t = t->next) {
        if (!is_chosen(t, file, names)) continue;
        if (count == MOST) abort();
        chosen[count++] = t->test;
    }
    if (count == 0) { /* no test finds nothing */
        fprintf(stderr, "no test is called so\n");
        exit(2);
    }
    return _cmocka_run_group_tests(group, chosen, count, NULL, NULL);
}

static bool element_is_close(double actual, double expected, double relative, double absolute)
{
    if (isinf(expected)) return actual == expected;
    return fabs(actual - expected) <= absolute + relative * fabs(expected);
}

bool assay_is_close(const double *actual, const double *expected, int64_t count, double relative, double absolute)
{
    bool close = true;
    for (int64_t i = 0; i < count; i++) close &= element_is_close(actual[i], expected[i], relative, absolute);
    return close;
}

void assay_assert_close(const double *actual, const double *expected, int64_t count, double relative, double absolute,
                        const char *what, const char *file, int line)
{
    int64_t worst = -1, wrong = 0;
    double excess = -1;
    for (int64_t i = 0; i < count; i++) {
        if (element_is_close(actual[i], expected[i], relative, absolute)) continue;
        double difference = fabs(actual[i] - expected[i]) / (absolute + relative * fabs(expected[i]));
        if (worst < 0 || !(difference <= excess)) {
            worst = i;
            excess = difference;
        }
        wrong++;
    }
    if (wrong > 0) {
        print_error("%s: %lld of %lld elements differ; the worst, %lld: %.17g, expected %.17g\n", what,
                    (long long)wrong, (long long)count, (long long)worst, actual[worst], expected[worst]);
        _fail(file, line);
    }
}

void assay_assert_same_bits(const double *actual, const double *expected, int64_t count, const char *what,
                            const char *file, int line)
{
    for (int64_t i = 0; i < count; i++) {
        if (memcmp(&actual[i], &expected[i], sizeof *actual) != 0) {
            print_error("%s: element %lld of %lld is %a, expected %a\n", what, (long long)i, (long long)count,
                        actual[i], expected[i]);
            _fail(file, line);
        }
    }
}

void assay_assert_all_nan(const double *actual, int64_t count, const char *what, const char *file, int line)
{
    for (int64_t i = 0; i < count; i++) {
        if (!isnan(actual[i])) {
            print_error("%s: element %lld of %lld is %a, expected NaN\n", what, (long long)i, (long long)count,
                        actual[i]);
            _fail(file, line);
        }
    }
}

void assay_assert_ok(int status, const char *message, const char *what, const char *file, int line)
{
    if (status != 0) {
        print_error("%s failed with status %d: %s\n", what, status, message);
        _fail(file, line);
    }
}

void assay_assert_bad_input(int status, const char *message, const char *words, const char *what, const char *file,
                            int line)
{
    if (status != ASSAY_BAD_INPUT || strstr(message, words) == NULL) {
        print_error("%s: status %d, \"%s\" expected in: %s\n", what, status, words, message);
        _fail(file, line);
    }
}

void assay_fill_nan(double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) values[i] = NAN;
}

uint64_t test_bits(uint64_t *seed) /* splitmix64 */
{
    uint64_t z = *seed += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

double test_uniform(uint64_t *seed)
{
    return (double)(test_bits(seed) >> 11) * 0x1p-53;
}

double test_normal(uint64_t *seed)
{
    double sum = -6;
    for (int i = 0; i < 12; i++) sum += test_uniform(seed);
    return sum;
}

/* The countdown to the allocation that fails: shared by all threads of the test. */
static atomic_llong allocations_left = -1;
static atomic_bool allocation_failed;

void assay_fail_allocation(int64_t n)
{
    if (n >= 0) atomic_store(&allocation_failed, false);
    atomic_store(&allocations_left, n);
}

int64_t assay_allocations_left(void)
{
    return atomic_load(&allocations_left);
}

bool assay_allocation_failed(void)
{
    return atomic_load(&allocation_failed);
}

bool assay_had_memory(int status, const char *message, const char *file, int line)
{
    const bool failed = assay_allocation_failed();
    assay_fail_allocation(-1);
    if (status != (failed ? ASSAY_NO_MEMORY : ASSAY_OK) || (failed && message[0] == '\0')) {
        print_error("status %d where an allocation %s: %s\n", status, failed ? "failed" : "did not fail", message);
        _fail(file, line);
    }
    return !failed;
}

static bool this_one_fails(void)
{
    if (atomic_load(&allocations_left) < 0) return false;
    if (atomic_fetch_sub(&allocations_left, 1) != 0) return false;
    atomic_store(&allocation_failed, true);
    return true;
}

/* Allocations that are not freed yet, and the byte that new ones hold: below 0 what they happen to. */
static atomic_llong live;
static atomic_int held = -1;

int64_t assay_live_allocations(void)
{
    return atomic_load(&live);
}

void assay_fill_allocations(int byte)
{
    atomic_store(&held, byte);
}

static void *taken(void *memory, size_t size)
{
    const int byte = atomic_load(&held);
    if (memory != NULL) atomic_fetch_add(&live, 1);
    if (memory != NULL && byte >= 0) memset(memory, byte, size);
    return memory;
}

/* The linker sends the program's calls here (--wrap); the __real_ names are the C library's. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void __wrap_free(void *memory);

void *__wrap_malloc(size_t size)
{
    return this_one_fails() ? NULL : taken(__real_malloc(size), size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return this_one_fails() ? NULL : taken(__real_calloc(count, size), 0);
}

void *__wrap_realloc(void *memory, size_t size)
{
    if (this_one_fails()) return NULL;
    return memory == NULL ? taken(__real_realloc(memory, size), size) : __real_realloc(memory, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return this_one_fails() ? NULL : taken(__real_aligned_alloc(alignment, size), size);
}

char *__wrap_strdup(const char *text)
{
    return this_one_fails() ? NULL : taken(__real_strdup(text), 0);
}

void __wrap_free(void *memory)
{
    if (memory != NULL) atomic_fetch_sub(&live, 1);
    __real_free(memory);
}
