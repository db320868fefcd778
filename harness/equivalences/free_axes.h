/* Axes of a program along which no step tells one index from another: what is given in another order along them leads to the
 * same results in that order. */
#pragma once

#include "oracle/program/program.h"

void assay_program_free_axes(const assay_program *p, char axes[ASSAY_PROGRAM_LETTERS]);

/* The first axis of an input, and of no weight, whose indices do not know each other: rows. '\0': there is none. */
char assay_program_row_axis(const assay_program *p);
