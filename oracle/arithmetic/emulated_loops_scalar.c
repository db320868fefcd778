/* The emulated arithmetic's loops with what every processor has. */
#include "oracle/arithmetic/emulated_loops.inc"

const emulated_loops emulated_loops_scalar = EMULATED_LOOPS;
