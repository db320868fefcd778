/* The results of one mutant. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutant_run.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/mutants/step_changes.h"
#include "harness/operations/operands.h"
#include "harness/plan/candidate_rows.h"
#include "harness/plan/inputs.h"
#include "harness/plan/plan_make.h"
#include "harness/scales/ensemble.h"

/* What the mutated case gives, in its own shapes, becomes the candidate's. A backend that never computes a result that
 * is wanted leaves zeros; what is not wanted it does not give. False: another shape is wanted. */
static bool take_results(const assay_mutant *mutant, const assay_tensor_set *from, assay_tensor_set *to)
{
    for (int i = 0; i < to->count; i++) {
        assay_tensor *wanted = &to->items[i];
        const char *path = wanted->spec.path;
        if (!assay_mutant_evaluates(mutant, path)) continue;
        const assay_tensor *found = assay_tensor_set_find(from, path);
        const assay_tensor_role role = wanted->spec.role;
        if (assay_role_is_input(role) || (role == ASSAY_ROLE_ERROR_SCALE && found == NULL)) continue;
        const bool required = assay_role_is_required(role);
        const bool fits = found != NULL && assay_shape_equal(&found->spec.shape, &wanted->spec.shape) &&
                          assay_tensor_is_complete(found);
        if (found != NULL && !fits && required) return false;
        wanted->written = fits || required ? wanted->count : 0;
        if (wanted->values != NULL) {
            for (int64_t k = 0; k < wanted->count; k++) wanted->values[k] = fits ? found->values[k] : 0.0;
        } else {
            for (int64_t k = 0; k < wanted->count; k++) wanted->indices[k] = fits ? found->indices[k] : 0;
        }
    }
    return true;
}

/* What one shard of several adds to the candidate: its rows of the outputs, and its part of the gradients. */
static void take_shard(const assay_tensor_set *from, int64_t shard, int64_t shards, assay_tensor_set *to)
{
    for (int i = 0; i < to->count; i++) {
        assay_tensor *wanted = &to->items[i];
        if (!assay_role_is_required(wanted->spec.role) || wanted->values == NULL) continue;
        const assay_tensor *found = assay_tensor_set_find(from, wanted->spec.path);
        if (wanted->spec.role == ASSAY_ROLE_OUTPUT) {
            const int64_t size = wanted->count / shards;
            memcpy(wanted->values + shard * size, found->values + shard * size, (size_t)size * sizeof *found->values);
            continue;
        }
        for (int64_t k = 0; k < wanted->count; k++)
            wanted->values[k] = (shard > 0 ? wanted->values[k] : 0.0) + found->values[k];
    }
}

/* The reference arithmetic with products of linear layers over whole blocks alone, or of whole blocks of rows. */
typedef struct lossy {
    assay_emulation emulation; /* first: the context points to it */
    int64_t whole_blocks, whole_rows;
    int64_t tokens; /* products of so many rows are none of an expert's */
    bool rows_too;  /* sums over rows as well: gradients of weights */
} lossy;

/* Rows of a group that are left: whole blocks, or all but the last. */
static int64_t rows_left(const lossy *l, int64_t rows)
{
    if (rows == l->tokens || rows == 0) return rows;
    return l->whole_rows < 0 ? rows - 1 : rows - rows % l->whole_rows;
}

/* The product of the rows that are left; the others of a result are 0. */
static assay_status product_of_rows_left(assay_context *ctx, const lossy *l, const assay_matmul_args *args)
{
    assay_matmul_args cut = *args;
    if (args->kind == ASSAY_PRODUCT_LINEAR_GRADIENT) cut.k = rows_left(l, args->k);
    if (args->kind == ASSAY_PRODUCT_LINEAR) cut.m = rows_left(l, args->m);
    for (int64_t i = cut.m; !args->accumulate && i < args->m; i++)
        for (int64_t j = 0; j < args->n; j++) args->c[i * args->ldc + j] = 0.0;
    return assay_arithmetic_reference.matmul(ctx, &cut);
}

static assay_status lossy_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    const lossy *l = (const lossy *)(const void *)ctx->emulation;
    const bool is_cut =
        args->kind == ASSAY_PRODUCT_LINEAR || (args->kind == ASSAY_PRODUCT_LINEAR_GRADIENT && l->rows_too);
    if (l->whole_rows != 0) return product_of_rows_left(ctx, l, args);
    assay_matmul_args cut = *args;
    cut.k -= is_cut ? cut.k % l->whole_blocks : 0;
    return assay_arithmetic_reference.matmul(ctx, &cut);
}

static const assay_arithmetic lossy_arithmetic = {.name = "lossy", .matmul = lossy_matmul};

static bool has_own_arithmetic(const assay_mutant *mutant)
{
    return mutant->degrade != NULL || assay_mutant_is_lossy(mutant);
}

/* With what is staged in the place of what is computed. */
static assay_status evaluate_from(assay_context *ctx, const assay_plan *plan, assay_tensor_set *staged,
                                  const assay_source *in, const assay_sink *out)
{
    assay_overlay given = {assay_tensor_set_source(staged), *in};
    const assay_source source = assay_overlay_source(&given);
    return assay_evaluate(ctx, plan, &source, out);
}

static assay_status run_requantised(assay_context *ctx, const assay_mutant *mutant, const assay_plan *plan,
                                    const assay_source *in, const assay_sink *out, bool *applies)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set staged = {0};
    MUST(assay_mutant_requantise(ctx, mutant, plan, in, &staged, applies));
    return *applies ? evaluate_from(ctx, plan, &staged, in, out) : ASSAY_OK;
}

/* With its steps changed: the mutant applies where such a step is run. */
static assay_status run_changed(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                const assay_plan *plan, const assay_source *in, const assay_sink *out, bool *applies)
{
    assay_context own = *ctx;
    assay_step_change change = mutant->step;
    change.found = applies;
    const bool stored = change.change % ASSAY_STEP_CHANGE_COUNT == ASSAY_STEP_CHANGE_STORED;
    change.type = stored ? t->profile->storage : assay_coarser_type(t->profile->storage);
    *applies |= assay_mutant_is_of_step(mutant); /* which is run, in every case that has it */
    /* attention over a cache is told of changed inputs, too, by which it may read what should not be */
    const bool told = (plan->operation->components & ASSAY_USES_DECODE) != 0 && !assay_mutant_changes_steps(mutant);
    if (told) change.kind = "inputs";
    if (told || assay_mutant_changes_steps(mutant)) own.change = &change;
    const assay_status status = assay_evaluate(&own, plan, in, out);
    memcpy(ctx->message, own.message, sizeof ctx->message);
    return status;
}

static assay_status run_operation(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                  const assay_plan *plan, const assay_tensor_set *given, assay_tensor_set *results,
                                  bool *applies)
{
    assay_context own = *ctx;
    const assay_source numbers =
        mutant->golden_choice ? assay_input_and_choice_source(given) : assay_input_source(given);
    assay_rounded rounded = {{&numbers, NULL}, plan->c, NULL};
    const assay_source in = assay_rounded_source(&rounded);
    const assay_sink out = assay_results_sink(results);
    if (assay_mutant_requantises(mutant)) return run_requantised(ctx, mutant, plan, &in, &out, applies);
    if (!has_own_arithmetic(mutant)) return run_changed(ctx, t, mutant, plan, &in, &out, applies);
    assay_emulation emulation = {.precision = assay_case_precision(plan->c, t->profile),
                                 .storage = t->profile->storage,
                                 .multiply = assay_case_multiply(plan->c, t->profile),
                                 .seed = ctx->emulation != NULL ? ctx->emulation->seed : plan->c->seed};
    const assay_mutation m = {.c = plan->c, .profile = t->profile, .tensors = (assay_tensor_set *)t->golden};
    if (mutant->degrade != NULL && mutant->degrade(&m, &emulation)) {
        own.arithmetic = &assay_arithmetic_emulated;
        own.emulation = &emulation;
    }
    const unsigned components =
        plan->operation->components; /* kernels mask rows of experts where one's end, on any row */
    const lossy loss = {.emulation.nearest = true,
                        .whole_blocks = mutant->whole_blocks,
                        .whole_rows = mutant->whole_rows,
                        .tokens = components & ASSAY_USES_GROUPS ? -1 : plan->c->batch * plan->c->sequence,
                        .rows_too = (components & ASSAY_USES_EXPERTS) == 0};
    if (assay_mutant_is_lossy(mutant)) {
        own.arithmetic = &lossy_arithmetic;
        own.emulation = &loss.emulation;
    }
    assay_status status = assay_operation_run(&own, plan->operation, plan->c, &in, &out);
    memcpy(ctx->message, own.message, sizeof ctx->message);
    return status;
}

/* Room for the checkpoints that a stage names. */
static assay_status open_stage(assay_context *ctx, const assay_mutant *mutant, const assay_plan *plan,
                               assay_tensor_set *made)
{
    for (int i = 0; mutant->stage.of != NULL && i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (spec->role == ASSAY_ROLE_CHECKPOINT && assay_any_word(mutant->stage.of, spec->path, assay_path_ends))
            MUST(assay_tensor_set_add(ctx, made, spec, NULL));
    }
    return ASSAY_OK;
}

/* The case as it is, from the checkpoints on that the mutant has made of these. */
static assay_status go_on(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant, assay_tensor_set *made,
                          assay_tensor_set *results, bool *applies)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set staged = {0};
    const assay_mutation m = {.c = t->plan->c, .profile = t->profile, .tensors = made};
    const assay_source numbers = assay_input_source(t->golden);
    assay_rounded rounded = {{&numbers, NULL}, t->plan->c, NULL};
    MUST(assay_mutant_change_stage(ctx, mutant, &m, applies));
    for (int i = 0; i < made->count; i++) MUST(assay_mutant_stage(ctx, &made->items[i], &staged));
    const assay_source in = assay_rounded_source(&rounded);
    const assay_sink out = assay_results_sink(results);
    MUST(evaluate_from(ctx, t->plan, &staged, &in, &out));
    for (int i = 0; i < made->count; i++) {
        const assay_tensor *from = &made->items[i], *to = assay_tensor_set_find(results, from->spec.path);
        if (to != NULL) memcpy(to->values, from->values, (size_t)to->count * sizeof *to->values);
    }
    return ASSAY_OK;
}

/* Whether all that the mutated case reads is there in its shape. */
static bool is_fed(const assay_plan *plan, const assay_tensor_set *given, bool numbers)
{
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (!assay_role_is_input(spec->role)) continue;
        if (numbers && plan->list.entries[i].part != ASSAY_OPERAND_CODES) continue;
        const assay_tensor *found = assay_tensor_set_find(given, spec->path);
        if (found == NULL || !assay_shape_equal(&found->spec.shape, &spec->shape)) return false;
    }
    return true;
}

/* Whether it sees quantised operands as the numbers that they are. */
static bool sees_numbers(const assay_mutant *mutant, const assay_case *c)
{
    return c->quant_format_count > 0 && (mutant->traits & ASSAY_HAS_CODES) == 0;
}

/* The inputs of the mutant into `given`; false: it changes none and should. */
static assay_status prepare_inputs(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   const assay_case *other, int64_t part, assay_tensor_set *given, bool *applies)
{
    const assay_plan *plan = t->plan;
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set redrawn = {0};
    const assay_tensor_set *from = t->golden;
    if (mutant->other_seed) {
        MUST(assay_inputs_open(ctx, &inputs, other, &plan->list, NULL));
        const assay_source drawn = assay_inputs_source(&inputs);
        MUST(assay_plan_tensors(ctx, &redrawn, plan, &drawn));
        from = &redrawn;
    }
    MUST(sees_numbers(mutant, plan->c) ? assay_operands_as_numbers(ctx, &plan->list, from, given)
                                       : assay_tensor_set_copy(ctx, from, given));
    const assay_mutation m = {.c = plan->c, .profile = t->profile, .tensors = given, .shard = part};
    MUST(assay_mutant_change_inputs(ctx, mutant, &m, applies));
    if (mutant->each_shard && *applies) assay_mutation_keep_shard(&m);
    return ASSAY_OK;
}

/* Of what is required: all zeros, or all NaN. */
static bool is_nothing(const assay_tensor_set *results, bool nan)
{
    bool found = false;
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        if (!assay_role_is_required(tensor->spec.role) || tensor->values == NULL) continue;
        for (int64_t k = 0; k < tensor->count; k++) {
            found = true;
            if (nan ? !isnan(tensor->values[k]) : tensor->values[k] != 0.0) return false;
        }
    }
    return found;
}

/* As a shard sees the mutant. `plan`: of the mutated case. */
static assay_status evaluate_part(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                  const assay_plan *plan, int64_t part, assay_tensor_set *candidate, bool *applies)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set given = {0}, results = {0}, made = {0};
    MUST(prepare_inputs(ctx, t, mutant, plan->c, part, &given, applies));
    MUST(open_stage(ctx, mutant, plan, &made));
    /* these may come to nothing where another part of it does */
    const bool steps = assay_mutant_changes_steps(mutant), stage = made.count > 0;
    const bool runs = (*applies || steps || stage) && is_fed(plan, &given, sees_numbers(mutant, plan->c));
    const bool lost = mutant->stage.of != NULL && !stage && !assay_mutant_changes_inputs(mutant);
    *applies &= runs && !lost &&
                ((!steps && !stage) || assay_mutant_changes_inputs(mutant) ||
                 (stage && assay_mutant_changes_configuration(mutant)));
    if (!runs || lost) return ASSAY_OK;
    const assay_source source = assay_input_source(&given);
    MUST(assay_plan_tensors(ctx, &results, plan, &source));
    MUST(run_operation(ctx, t, mutant, plan, &given, stage ? &made : &results, applies));
    if (stage) MUST(go_on(ctx, t, mutant, &made, &results, applies));
    if (!*applies) return ASSAY_OK;
    if (mutant->each_shard) {
        take_shard(&results, part, assay_case_shards(plan->c), candidate);
    } else {
        /* where no axis has a whole block nothing is left, which is zero_results, and beyond a coarse type's range NaN */
        const bool cut = mutant->whole_blocks > 0 || mutant->whole_rows != 0, coarse = mutant->degrade != NULL;
        *applies = !((cut || coarse) && is_nothing(&results, coarse)) && take_results(mutant, &results, candidate);
    }
    return ASSAY_OK;
}

/* Whether some expert has so many rows that one is left: else all that is routed would be lost, whatever the blocks are, and
 * the mutant has no effect. */
static bool keeps_rows(const assay_trial *t, const assay_mutant *mutant)
{
    const int64_t least = mutant->whole_rows < 0 ? 2 : mutant->whole_rows;
    bool chosen = false;
    for (int i = 0; i < t->golden->count && mutant->whole_rows != 0; i++) {
        const assay_tensor *tensor = &t->golden->items[i];
        if (!assay_path_ends(tensor->spec.path, "selected_experts") || tensor->indices == NULL) continue;
        chosen = true;
        for (int32_t e = 0; e < t->plan->c->config.num_experts; e++) {
            int64_t rows = 0;
            for (int64_t k = 0; k < tensor->count; k++) rows += tensor->indices[k] == e;
            if (rows >= least) return true;
        }
    }
    return !chosen;
}

assay_status assay_mutant_evaluate(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   assay_tensor_set *candidate, bool *applies)
{
    assay_case c = *t->plan->c; /* as its golden has it, whether that is a file or not */
    assay_plan plan = {0};
    assay_emulation ignored = {0};
    const assay_mutation golden = {.c = &c, .profile = t->profile, .tensors = (assay_tensor_set *)t->golden};
    char *profile = (char *)t->profile->precision.name;
    const bool own_scales = t->scales && !has_own_arithmetic(mutant) && !mutant->each_shard;
    MUST(assay_case_resolve(ctx, t->plan->c, &c.config));
    c.profiles = (assay_text_list){.items = &profile, .count = own_scales ? 1 : 0};
    c.seed += mutant->other_seed ? 1 : 0;
    assay_model_forget_set_keys(&c.config); /* a bug does not ask what the family honours */
    *applies = assay_mutant_configure(mutant, &c) && (mutant->degrade == NULL || mutant->degrade(&golden, &ignored));
    if (!*applies || !keeps_rows(t, mutant)) return ASSAY_OK;
    assay_status status = assay_plan_make_with(ctx, &plan, &c, NULL, t->profile);
    const int64_t parts = mutant->each_shard ? assay_case_shards(&c) : 1;
    for (int64_t part = 0; status == ASSAY_OK && *applies && part < parts; part++)
        status = evaluate_part(ctx, t, mutant, &plan, part, candidate, applies);
    if (status == ASSAY_BAD_INPUT) { /* what the operation refuses, no backend computes either */
        *applies = false;
        ctx->message[0] = '\0';
        status = ASSAY_OK;
    }
    assay_plan_free(&plan);
    return status;
}

assay_status assay_mutant_make(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                               assay_tensor_set *candidate, bool *applies)
{
    const assay_mutation m = {.c = t->plan->c, .profile = t->profile, .tensors = candidate, .own_scales = t->scales};
    MUST(assay_tensor_set_copy(ctx, t->golden, candidate));
    *applies = true;
    if (assay_mutant_is_evaluated(mutant)) MUST(assay_mutant_evaluate(ctx, t, mutant, candidate, applies));
    if (*applies) MUST(assay_mutant_change_results(ctx, mutant, &m, applies));
    if (*applies) MUST(assay_results_copy_unused(ctx, t->plan, t->golden, candidate)); /* nobody looks at them */
    return ASSAY_OK;
}
