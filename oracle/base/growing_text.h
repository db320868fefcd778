/* A stream into memory. open_memstream's does not tell when memory ran out: what did not fit is missing, and ferror says
 * nothing. */
#pragma once

#include <stdio.h>

/* NULL: no memory. *text, of *size bytes and a zero byte, holds what was flushed; assay_text_close (memory.h) says whether it is
 * whole. To be freed, also where it is not. */
FILE *assay_text_open(char **text, size_t *size);
