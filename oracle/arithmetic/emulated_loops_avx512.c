/* The emulated arithmetic's loops with AVX-512 (only such files are compiled for it). */
#include "oracle/arithmetic/emulated_loops.inc"

const emulated_loops emulated_loops_avx512 = EMULATED_LOOPS;
