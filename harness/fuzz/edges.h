/* Which sizes of a shrunk case fail as it does, and which pass: a tile's edge shows there, that the smallest case hides. */
#pragma once

#include "harness/fuzz/shrink.h"

enum { ASSAY_EDGES_TEXT = 1024 };

/* Lines "sequence: 1 to 15 fail, 16 passes, 17 to 31 fail ..." of each size by which it is decided; "" where none decides. The rest of
 * `s`, with its limits, is that of the shrinking before. */
assay_status assay_edges_find(assay_context *ctx, assay_shrinking *s, const assay_case *c, char text[ASSAY_EDGES_TEXT]);
