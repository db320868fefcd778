/* The emulated arithmetic's loops with what every processor has. */
#include "oracle/arithmetic/emulated_loops.inc"

const emulated_loops emulated_loops_scalar = {
    .round = round_values, .are_on_grid = are_on_grid, .add_sum_error = add_sum_error};
