/* The mutants: what a backend would give if it had a certain bug. One const table (mutants.c).
 *
 * A mutant is made from a golden: the case is evaluated again with a changed configuration, with changed steps, with changed
 * inputs or in a worse arithmetic, or the golden's own results are tampered with. */
#pragma once

#include "compare/compare.h"
#include "compare/profile.h"
#include "harness/plan/results.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/step_change.h"
#include "oracle/ops/quantize.h"

struct assay_tensors_change;

/* What the functions that change tensors may look at. */
typedef struct assay_mutation {
    const assay_case *c;
    const assay_profile *profile;
    assay_tensor_set *tensors;              /* theirs to change; of a result, `written = 0` means: not given */
    const struct assay_tensors_change *row; /* what it says of the tensors at hand; NULL: nothing */
    double *scratch;                        /* room for each of the tensors */
    int64_t shard;                          /* of the mesh, for mutants that differ from shard to shard */
    bool own_scales; /* error scales among the tensors are those of the mutated case, to be changed alike */
} assay_mutation;

/* The places of a tensor along an axis, or along several that are taken as one. */
typedef struct assay_places {
    const assay_mutation *m;
    const assay_tensor *tensor;
    int64_t count;
    double number; /* of the row: of places, of shards */
} assay_places;

/* What place i becomes: what another place was, itself, or ASSAY_CHANGED. */
enum { ASSAY_CHANGED = -1 };
typedef int64_t assay_place_map(const assay_places *p, int64_t i);
/* What the number at place i of all becomes. */
typedef double assay_number_map(const assay_places *p, int64_t i, double number);

/* Each changes something and says whether it did. What is there to choose from: mutants_tensors.h. */
typedef bool assay_case_edit(assay_case *c);
struct assay_routing_rule;
typedef void assay_rule_edit(struct assay_routing_rule *rule);
typedef bool assay_tensor_edit(const assay_mutation *m, assay_tensor *tensor);
typedef bool assay_mutation_edit(const assay_mutation *m);
/* Codes and scales of h that a kernel quantises itself, which it goes on with: beside them h, gate and up before the
 * activation, all as the golden's kernel has them; gate and up are NULL where they are side by side. */
typedef struct assay_hidden_mutation {
    const assay_quantize_config *config; /* of a row */
    const assay_tensor *h, *gate, *up;
    assay_tensor *codes, *scale;
} assay_hidden_mutation;
typedef bool assay_hidden_edit(const assay_hidden_mutation *m);
typedef bool assay_arithmetic_edit(const assay_mutation *m, assay_emulation *emulation);

/* One key of the configuration. Numbers are changed where they are above 0: else what they scale or limit is off; READ_AS
 * changes any value to that of a text, EXCHANGED "one>other *>one" a text to another. GIVEN alone changes nothing: the key
 * counts as given. */
typedef struct assay_key_change {
    int key; /* ASSAY_KEY_AT_... */
    enum {
        ASSAY_KEY_STAYS,
        ASSAY_KEY_FLIP,
        ASSAY_KEY_TO,
        ASSAY_KEY_PLUS,
        ASSAY_KEY_TIMES,
        ASSAY_KEY_SQUARED,
        ASSAY_KEY_READ_AS,
        ASSAY_KEY_EXCHANGED,
        ASSAY_KEY_GIVEN
    } how;
    double by;
    const char *value; /* READ_AS, EXCHANGED */
} assay_key_change;

/* Some tensors. Lists have spaces between their words. */
typedef struct assay_tensors_change {
    const char *of;  /* of inputs, what paths end in (weights and the choice of experts too); of results, folders */
    bool cotangents; /* of inputs: these alone */
    assay_tensor_edit *edit;
    double by;
    const char *axis; /* a label, or a name (mutant_change.c) */
    assay_place_map *places;
    assay_number_map *each;
    double number;     /* of `places`; or a factor of `by`, where there are none */
    int of_case;       /* ASSAY_CASE_...: that number, where it goes by the case */
    const char *named; /* of results, what paths end in; NULL: anything */
} assay_tensors_change;

/* Traits of an operation that its tensors show, beside its parts. */
enum {
    ASSAY_HAS_X = 1 << 30,
    ASSAY_HAS_WEIGHTS = 1 << 29,
    ASSAY_IS_FUNCTION = 1 << 28,
    ASSAY_HAS_CODES = 1 << 27,
    ASSAY_HAS_HIDDEN = 1 << 26,
    ASSAY_HAS_RECIPE = 1 << 25,
    ASSAY_HAS_RECIPE_OF_BLOCKS = 1 << 24,
    ASSAY_HAS_CACHE_BYTES = 1 << 23 /* which it reads */
};

/* How much of a model an operation is: one part of it alone, a block of several parts, or layers. */
typedef enum assay_extent { ASSAY_NOWHERE, ASSAY_ALONE, ASSAY_IN_BLOCKS, ASSAY_EVERYWHERE } assay_extent;

enum { ASSAY_MUTANT_KEYS = 2 };

/* A mutant is made by one or more of `keys` to `change_results`, in this order. Where the configuration, the inputs, the
 * arithmetic or the results are to be changed and there is nothing to change, it does not apply to the case. */
typedef struct assay_mutant {
    const char *name;
    const char *models;    /* in a few words */
    const char *bugs;      /* numbers of docs/bugs.csv: "8, 9"; "" */
    unsigned traits;       /* it is for operations with one of these: ASSAY_USES_..., ASSAY_HAS_...; 0: for all.
                              ASSAY_HAS_CODES: it changes codes and scales; others see the numbers that these are */
    assay_extent required; /* fixtures of those up to this extent must detect it where it has an effect */

    int where;                                /* ASSAY_WHERE_...: it applies to no other cases */
    assay_key_change keys[ASSAY_MUTANT_KEYS]; /* one of them must change */
    size_t sets;                              /* a flag of the configuration that is no key, by its offset; 0: none */
    assay_rule_edit *router;
    const char *recipe_bug; /* of a training recipe; of several the first that it can have */
    assay_case_edit *configure;
    bool other_seed;             /* evaluate with what the next seed draws */
    assay_tensors_change inputs; /* as the operation reads them */
    assay_mutation_edit *change_inputs;
    assay_arithmetic_edit *degrade;
    const char *makes, *asks;           /* of `degrade`, for a sentence: "sums in bfloat16", "sum in bfloat16" */
    assay_tensors_change hidden_scales; /* ASSAY_HAS_HIDDEN: of h that the kernel quantises itself */
    assay_hidden_edit *requantise;      /* these and codes, by the numbers of h */
    assay_step_change step;             /* of the operation, wherever it stands; without effect where `how` is 0 */
    /* Checkpoints of the evaluation, which are changed, unless `stage.edit` is NULL: the case as it is goes on from these. */
    assay_tensors_change stage;
    assay_mutation_edit *change_stage;
    int64_t whole_blocks; /* products of linear layers leave out what is beyond the last block of so many; 0: nothing */
    int64_t whole_rows;   /* the same of the rows of a group or an expert, in all its products; -1: the last row */
    assay_tensors_change results;  /* floats: the golden's, or those that the rest gave */
    assay_tensors_change integers; /* of the results */
    assay_mutation_edit *change_results;

    bool always;        /* it must be detected whether it has an effect or not */
    bool each;          /* detected: every tensor that it changes says so by itself; else: the candidate fails */
    bool golden_choice; /* evaluate with the golden's choice of experts */
    bool each_shard;    /* evaluate once for each shard of the mesh: its rows of the outputs, their gradients */
    assay_tensors_change takes; /* only these results come from the evaluation; nothing is done to them. Else: all */
} assay_mutant;

extern const assay_mutant assay_mutants[];
extern const int assay_mutant_count;
/* One for each setting of a case that changes numbers: what a backend gives that has not read it (ignored_settings.c).
 * Explanations of a failure alone; the power of a golden counts none. */
extern const assay_mutant assay_ignored_settings[];
extern const int assay_ignored_setting_count;
bool assay_mutant_is_ignored_setting(const assay_mutant *mutant);

const assay_mutant *assay_mutant_by_name(const char *name); /* of either table; NULL when there is none */

/* Mutants of the steps of a case's graph: each change that each step has (harness/mutants/step_changes.h), as
 * step:TENSOR:CHANGE (mutants_steps.c). */
typedef struct assay_step_mutant {
    assay_mutant mutant;
    char name[ASSAY_EXPLAINED_NAME], models[224];
} assay_step_mutant;

/* The table's mutants in its order, and behind them those of steps. */
typedef struct assay_mutant_list {
    int count;
    const assay_mutant **items;
    assay_step_mutant *of_steps;
} assay_mutant_list;

/* Of an operation that has parts the table's alone: those know what bugs its steps have. Of programs those of steps too. To explain a
 * failure token is 0 and more, else -1: forms of steps that are right but for their accuracy, and states that are lost once, behind so
 * many tokens (0: none), count for no golden's power. */
assay_status assay_mutants_of(assay_context *ctx, const assay_plan *plan, int64_t token, assay_mutant_list *list);
/* Those of both that the pattern matches, of any operation; what has no graph has none of steps. Refuses one that matches none. */
assay_status assay_mutants_like(assay_context *ctx, const assay_plan *plan, const char *pattern,
                                assay_mutant_list *list);
void assay_mutant_list_free(assay_mutant_list *list);                    /* safe on a zeroed struct */
int assay_mutant_place(const assay_mutant_list *list, const char *name); /* -1: there is none */
bool assay_mutant_is_of_step(const assay_mutant *mutant);

/* "configuration", "steps", "inputs", "arithmetic" or "results": the first of its parts. */
const char *assay_mutant_way(const assay_mutant *mutant);
bool assay_mutant_changes_configuration(const assay_mutant *mutant);
bool assay_mutant_changes_steps(const assay_mutant *mutant);
bool assay_mutant_is_evaluated(const assay_mutant *mutant);   /* its case is; else results are changed and no more */
bool assay_mutant_requantises(const assay_mutant *mutant);    /* h that the kernel quantises itself */
bool assay_mutant_is_lossy(const assay_mutant *mutant);       /* the reference arithmetic without some products */
bool assay_mutant_changes_inputs(const assay_mutant *mutant); /* by more than another seed */
bool assay_mutant_is_for(const assay_mutant *mutant, const assay_plan *plan); /* its operation has such a trait */
bool assay_mutant_is_required(const assay_mutant *mutant, const assay_plan *plan);

/* Its parts. Not `*applies`, false: the mutant does not apply. One that the row does not have does nothing and is true. */
bool assay_mutant_configure(const assay_mutant *mutant, assay_case *c);
assay_status assay_mutant_change_inputs(assay_context *ctx, const assay_mutant *mutant, const assay_mutation *m,
                                        bool *applies);
assay_status assay_mutant_change_results(assay_context *ctx, const assay_mutant *mutant, const assay_mutation *m,
                                         bool *applies);
bool assay_mutant_evaluates(const assay_mutant *mutant, const char *path); /* a result from the evaluation */

/* What rounds results, which is expected of no error scale (explain). */
assay_tensor_edit assay_edit_truncate, assay_edit_coarser;
/* The next coarser type that is in use. */
assay_dtype assay_coarser_type(assay_dtype type);
/* Cotangents of other shards than m->shard become zero. */
void assay_mutation_keep_shard(const assay_mutation *m);
