/* Parallel regions with one thread, which go without libgomp. */
#include <omp.h>

#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { COUNT = 100 };

static int sum_with(int threads)
{
    int of[COUNT] = {0}, sum = 0;
#pragma omp parallel for num_threads(threads)
    for (int i = 0; i < COUNT; i++) of[i] += i + 1;
    for (int i = 0; i < COUNT; i++) sum += of[i];
    return sum;
}

TEST(every_iteration_is_run_once)
{
    for (int threads = 1; threads <= 3; threads++) assert_int_equal(sum_with(threads), COUNT * (COUNT + 1) / 2);
}

TEST(inside_of_a_region_of_two_threads_each_runs_all_of_its_own_loop)
{
    int sums[2] = {0};
#pragma omp parallel for num_threads(2) schedule(static, 1)
    for (int i = 0; i < 2; i++) sums[i] = sum_with(1);
    assert_int_equal(sums[0], COUNT * (COUNT + 1) / 2);
    assert_int_equal(sums[1], COUNT * (COUNT + 1) / 2);
}

TEST(a_region_of_two_threads_inside_of_one_of_one_has_two)
{
    int threads = 0;
#pragma omp parallel num_threads(1)
    {
#pragma omp parallel num_threads(2)
#pragma omp single
        threads = omp_get_num_threads();
    }
    assert_int_equal(threads, 2);
}
