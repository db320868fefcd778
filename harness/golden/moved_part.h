/* Parts of a journal whose numbers are moved into the golden that grows beside them, so that the disk holds them once.
 *
 * The golden grows as `results-N` in the journal's folder. As soon as a part's datasets are in it, and on the disk, the
 * part is written anew without them: its attribute `results` is N, `moved` has a line PATH DIGEST for each, and
 * the dataset moved/I [ranges,3] says where the numbers of line I are: first element, elements, first byte. So each number
 * is in one place at least, whenever the work is stopped; who goes on moves them on, into the next `results-N`. Private to
 * harness/golden. */
#pragma once

#include "harness/golden/journal.h"

typedef struct assay_moving {
    const assay_journal *journal;
    const assay_plan *plan;
    int results; /* the number of the file in which the golden grows now */
} assay_moving;

/* Chooses a new name, and removes files that no part needs. */
assay_status assay_moving_begin(assay_context *ctx, assay_moving *moving, const assay_journal *journal,
                                const assay_plan *plan, int64_t layers);
void assay_moving_path(const assay_moving *moving, char path[ASSAY_JOURNAL_PATH]);

/* Whether a dataset of a part says where others are. */
bool assay_is_moved_table(const char *path);
/* What has been moved out of the part, from where it is now into the sink. */
assay_status assay_moving_copy(assay_context *ctx, const assay_moving *moving, assay_fixture_reader *part,
                               const assay_sink *out);
/* Writes the part anew, now that `writer` has its datasets; but `stays` (NULL: none) is another than the golden's. */
assay_status assay_moving_note(assay_context *ctx, const assay_moving *moving, assay_fixture_reader *part,
                               int64_t layer, bool backward, const char *stays, assay_fixture_writer *writer);

/* Whether the golden is in its place: a part names a file that has become it. */
assay_status assay_moving_is_over(assay_context *ctx, const assay_journal *journal, int64_t layers, bool *over);
