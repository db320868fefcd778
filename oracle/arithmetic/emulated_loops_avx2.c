/* The emulated arithmetic's loops with AVX2 (only such files are compiled for it). */
#include "oracle/arithmetic/emulated_loops.inc"

const emulated_loops emulated_loops_avx2 = EMULATED_LOOPS;
