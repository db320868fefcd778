/* What is done of a golden that is made a layer at a time: a folder beside it, PATH.journal, which goes when the golden is
 * there. It holds `case.yml`, which says whose work it is, for each layer that is done the fixtures forward-N.h5 and
 * backward-N.h5, each whole or not there, and at the end the golden that they are moved into (moved_part.h). Private to harness/golden. */
#pragma once

#include "fixtures/digest.h"
#include "fixtures/fixture.h"
#include "harness/plan/plan.h"

typedef struct assay_journal {
    char folder[4000];
    int lock;                     /* descriptor of case.yml; -1: none */
    char work[ASSAY_DIGEST_SIZE]; /* of what case.yml says */
} assay_journal;

enum { ASSAY_JOURNAL_PATH = 4096, ASSAY_MOST_RESULTS = 64 };

/* Makes the folder, or goes on with one. Refuses a folder of another case, engine or version of assay, one that another
 * process works in, and one that is no journal. */
assay_status assay_journal_open(assay_context *ctx, assay_journal *journal, const char *path, const assay_plan *plan);
void assay_journal_close(assay_journal *journal); /* what is done stays; safe after a failed open */
/* What it takes on the disk. */
int64_t assay_journal_bytes(const assay_journal *journal, int64_t layers);
/* Removes all of it. */
assay_status assay_journal_remove(assay_context *ctx, assay_journal *journal, int64_t layers);

void assay_journal_part(const assay_journal *journal, int64_t layer, bool backward, char path[ASSAY_JOURNAL_PATH]);
/* The golden while it grows; each run that parts are moved in has a number of its own (moved_part.h). */
void assay_journal_results(const assay_journal *journal, int number, char path[ASSAY_JOURNAL_PATH]);
bool assay_journal_has(const assay_journal *journal, int64_t layer, bool backward);
/* A part is signed with what it is: the layer, the direction, and the work that it is of. */
assay_status assay_journal_sign(assay_context *ctx, const assay_journal *journal, int64_t layer, bool backward,
                                assay_fixture_writer *writer);
/* Opens a part that is there; refuses one that is damaged, of another layer or of another journal. */
assay_status assay_journal_read(assay_context *ctx, const assay_journal *journal, int64_t layer, bool backward,
                                assay_fixture_reader **reader);
