#include "oracle/mesh/ragged_buffer.h"
#include "tests/support/assay_test.h"

/* The first four are the numbers of MaxText's own tests. */
TEST(test_buffer_rows)
{
    static const struct {
        int64_t rows, shards, experts, per_token;
        double factor;
        int64_t expected;
    } table[] = {
        {32768, 4, 256, 8, 1.0, 32768},      {32768, 4, 256, 8, 2.0, 65536}, {32768, 4, 256, 8, -1.0, 131072},
        {32768, 128, 256, 8, -1.0, 1048576}, {10, 8, 5, 2, 0.0, 25},         {7, 1, 5, 2, 1.5, 10},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_int_equal(assay_ragged_buffer_rows(table[i].rows, table[i].shards, table[i].experts, table[i].per_token,
                                                  table[i].factor),
                         table[i].expected);
    }
}
