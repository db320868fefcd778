/* Drawing cases: one of the catalogue, with some of its keys and inputs changed. What was drawn rarely so far is drawn
 * more, what the backend said that it does not have less; so a draw follows from the seed and from what became of the
 * draws before it, never from time. */
#pragma once

#include "compare/profile.h"
#include "harness/fuzz/draw_table.h"
#include "harness/operations/operation.h"

enum { ASSAY_CHANGES_MOST = 4, ASSAY_CHOICES_MOST = 20, ASSAY_OPERATIONS_MOST = 32 };

/* Sizes whose edges are counted: tokens, emb_dim, mlp_dim, moe_mlp_dim, experts. */
enum { ASSAY_EDGE_SIZES = 5 };

/* How often something ran, or was not supported. */
typedef struct assay_draw_count {
    int ran, unsupported;
} assay_draw_count;

/* Settings that every case has, as key=value. */
typedef struct assay_draw_sets {
    const char *const *items;
    int count;
} assay_draw_sets;

typedef struct assay_draws {
    uint64_t seed;
    assay_draw_sets sets;
    assay_case *bases; /* the catalogue, of the operations that are asked for */
    int base_count;
    assay_draw_count *of_bases;
    int operations; /* places of these in assay_operations */
    assay_draw_count of_operations[ASSAY_OPERATIONS_MOST];
    assay_draw_count of_keys[ASSAY_OPERATIONS_MOST][ASSAY_DRAW_KEYS_MOST][ASSAY_CHOICES_MOST];
    bool edges[ASSAY_EDGE_SIZES][3 * ASSAY_DRAW_EDGES_MOST]; /* of what ran: k-1, k, k+1 of each edge */
    int64_t refused;                                         /* draws, or single changes, that were no case */
} assay_draws;

/* What a case was drawn from. */
typedef struct assay_drawn {
    int base, operation, count;
    int keys[ASSAY_CHANGES_MOST], choices[ASSAY_CHANGES_MOST]; /* key -1: an input, or a size of a program */
} assay_drawn;

/* `op`: of one operation alone, or NULL. Refuses one that there is not. `sets`: NULL for none; where they go with no case
 * of the catalogue, that is refused. */
assay_status assay_draws_start(assay_context *ctx, assay_draws *draws, uint64_t seed, const char *op,
                               const assay_draw_sets *sets);
void assay_draws_free(assay_draws *draws);

/* Draw `number`: a case that can be evaluated (where the settings leave one) and is small, named fuzz/OP-NUMBER, to be freed. */
assay_status assay_draw(assay_context *ctx, assay_draws *draws, int64_t number, assay_case *c, assay_drawn *drawn);
void assay_draws_learn(assay_draws *draws, const assay_drawn *drawn, const assay_case *c, bool supported);

/* Makes a changed case have them. */
assay_status assay_draw_set(assay_context *ctx, const assay_draw_sets *sets, assay_case *c);
/* Whether there is such a case, and it is small. `profile`: one of the caller that it may name; or NULL. */
assay_status assay_draw_check(assay_context *ctx, const assay_case *c, const assay_profile *profile, bool *is_case);
/* Whether its inputs can be made and give finite results: what numbers are refused for is found where they are used. */
assay_status assay_draw_check_numbers(assay_context *ctx, const assay_case *c, const assay_profile *profile,
                                      bool *is_case);
/* The same of a case that was changed, with the settings; where it needs that to be one, inputs are cut to what it has (assay_draw_fit).
 * What is refused on the way is no case. */
assay_status assay_draw_settle(assay_context *ctx, const assay_draw_sets *sets, const assay_profile *profile,
                               assay_case *c, bool *is_case);
/* Bad input is no error where a case may be none: OK, and no message. */
assay_status assay_draw_forgive(assay_context *ctx, assay_status status);
/* Numbers that its golden has; 0 where there is no such case. */
int64_t assay_draw_elements(const assay_case *c, const assay_profile *profile);
/* Inputs that say more rows, groups or tokens than the case has are cut to what it has. */
void assay_draw_fit(assay_case *c);

/* Another size of a program's axis; indices that went to its end go to the new one. */
assay_status assay_draw_size(assay_context *ctx, assay_case *c, int axis, int64_t size);

/* Words of a list of values. */
int assay_draw_choices(const char *values);
