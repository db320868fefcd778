/* PROGRAM [FILE [TEST...]]: runs the tests of all files, of one (test_dtype), or those of them that are called so. */
#include "tests/support/assay_test.h"

int main(int argc, char **argv)
{
    return assay_run_tests(argc > 1 ? argv[1] : "tests", argc > 1 ? argv[1] : NULL, argc > 2 ? argv + 2 : NULL);
}
