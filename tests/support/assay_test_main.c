/* What runs a program's tests, where it does not say so itself. */
#include "tests/support/assay_test.h"

int main(void)
{
    return assay_run_tests("tests");
}
