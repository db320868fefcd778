/* The cases that a command line means: names, globs, YAML files, stored goldens, filters, a shard. */
#pragma once

#include "harness/commands/options.h"

typedef struct assay_chosen {
    assay_case *cases;
    char **goldens; /* of each case the path of the stored golden that it is of; NULL: it is none's */
    int count;
} assay_chosen;

enum {
    ASSAY_CHOOSE_GOLDENS = 1 << 0, /* an argument may be a golden, or a folder with goldens in it */
    ASSAY_CHOOSE_ALL = 1 << 1      /* no argument: the whole catalogue, with the cases of true size */
};

/* The arguments' cases (a filter or a shard without arguments: those of '*'), of these what the filter takes, with --set and
 * --seed applied, of these the shard. The digests of goldens have been checked. Refuses what chooses nothing, a name twice, and
 * --set with a golden. `how`: sum of ASSAY_CHOOSE_ values. */
assay_status assay_choose(assay_context *ctx, const assay_options *options, unsigned how, assay_chosen *chosen);
void assay_chosen_free(assay_chosen *chosen); /* safe on a zeroed struct */

/* About how many operations a case is, with files and processes; 0 where it cannot be said. */
double assay_case_cost(const assay_case *c);

/* places [count]: which of so many parts, of about the same work, a case belongs to. The heaviest that has no place yet goes to the
 * part that has least; of equals the first. */
assay_status assay_share_out(assay_context *ctx, const double *work, int count, int parts, int *places);

/* Whether something is chosen although there is no argument. */
bool assay_chooses_without_arguments(const assay_options *options);

/* Two names of one file that is there. */
bool assay_is_same_file(const char *one, const char *other);
