/* One layer under the schedule: its stages for one microbatch after the other, and what it keeps for backward. */

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_steps.h"

static assay_status write_checkpoints(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    static const struct {
        const char *name;
        bs_tensor tensor;
    } shown[] = {{"decoder_layer_input", MB_LAYER_INPUTS},
                 {"attention_out", MB_ATTN_OUT},
                 {"lse", MB_LSE},
                 {"mla_out", MB_MLA_OUT}};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        MUST(bs_write_tensor(ctx, at->run, at->layer, "checkpoints", shown[i].name, b, shown[i].tensor));
    return ASSAY_OK;
}

/* A function for microbatch 0, 1, ..., each an event; gradients of weights from `first` to before `end` are summed over them. */
typedef struct stage {
    assay_stage name;
    bs_function *run;
    bs_function_bwd *back;
    int first, end;
    bool attention, but_last; /* of the attention half; the last microbatch's is not now */
    bs_function *after;       /* of all microbatches */
} stage;

static const stage forward_stages[] = {
    {.name = ASSAY_STAGE_MLA_WITH_NORMS, .run = bs_mla_with_norms, .attention = true, .after = write_checkpoints},
    {.name = ASSAY_STAGE_ROUTE, .run = bs_stage_route, .after = bs_after_route},
    {.name = ASSAY_STAGE_COMPUTE, .run = bs_stage_compute, .after = bs_after_compute},
    {.name = ASSAY_STAGE_UNROUTE, .run = bs_stage_unroute, .but_last = true}};

/* What forward did not keep is made again first. */
static const stage backward_stages[] = {
    {.name = ASSAY_STAGE_MLA_WITH_NORMS_REMAT, .run = bs_mla_with_norms_remat, .attention = true},
    {.name = ASSAY_STAGE_ROUTE_REMAT, .run = bs_shared_expert_and_route_remat},
    {.name = ASSAY_STAGE_COMPUTE_REMAT, .run = bs_compute_remat},
    {.name = ASSAY_STAGE_UNROUTE_BWD, .back = bs_unroute_ubatch_bwd, .but_last = true},
    {.name = ASSAY_STAGE_COMPUTE_BWD, .back = bs_compute_bwd, .first = BS_ROUTED, .end = BS_WEIGHTS},
    {.name = ASSAY_STAGE_ROUTE_BWD, .back = bs_stage_route_bwd, .first = BS_POST_NORM, .end = BS_ROUTED},
    {.name = ASSAY_STAGE_MLA_WITH_NORMS_BWD, .back = bs_mla_with_norms_bwd, .end = BS_POST_NORM, .attention = true}};

static assay_status run_stage(assay_context *ctx, bs_run *run, const bs_layer *at, const stage *s, bs_microbatch *b,
                              bs_microbatch *d)
{
    bs_layer each = *at;
    OWNED_BY(bs_gradient_sums_close) bs_gradient_sums sums = {0};
    if (s->attention && b->values[MB_LAYER_INPUTS] == NULL) return ASSAY_OK;
    if (s->back != NULL) MUST(bs_gradient_sums_open(ctx, run, &sums, at->g, s->first, s->end));
    for (int64_t m = 0; m < run->factor - s->but_last; m++) {
        each.g = bs_gradients_of(&sums, m);
        MUST(assay_schedule_add(ctx, &run->schedule, d != NULL, s->name, at->layer, m));
        MUST(s->back != NULL ? s->back(ctx, &each, &b[m], &d[m]) : s->run(ctx, &each, &b[m]));
        if (s->back != NULL) bs_add_gradients(ctx, run, &sums, m);
    }
    return s->after == NULL ? ASSAY_OK : s->after(ctx, at, b);
}

static bs_layer begin(const assay_context *ctx, bs_shown *shown, bs_steps *steps, const bs_run *run, int64_t layer,
                      bs_microbatch *b, bool backward)
{
    bs_steps_open(steps, ctx, run, bs_recipe_of(run), false);
    for (int64_t m = 0; m < run->factor; m++) {
        if (run->yarn_freqs[m] != NULL) bs_lend(&b[m], MB_ANGLES, run->yarn_freqs[m]);
        b[m].number = m;
    }
    return (bs_layer){.run = run,
                      .layer = layer,
                      .steps = steps,
                      .recipe = bs_recipe_of(run),
                      .made = bs_shown_open(shown, run, layer, backward),
                      .keeps = run->stack->store != NULL};
}

assay_status bs_batch_split_schedule(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                     const bs_weights *w)
{
    OWNED_BY(bs_shown_close) bs_shown shown = {0};
    bs_steps steps[BS_STEPS_KINDS];
    bs_layer at = begin(ctx, &shown, steps, run, layer, b, false);
    bs_microbatch *last = &b[run->factor - 1];
    at.w = w;
    MUST(bs_read_given(ctx, run, layer, b));
    for (size_t i = 0; i < sizeof forward_stages / sizeof *forward_stages; i++)
        MUST(run_stage(ctx, run, &at, &forward_stages[i], b, NULL));
    return bs_copy(ctx, run, last, MB_MOE_INPUTS, MB_MLA_OUT);
}

assay_status bs_batch_split_schedule_bwd(assay_context *ctx, bs_run *run, int64_t layer, bs_microbatch *b,
                                         bs_microbatch *d, const bs_weights *w, const bs_weights *g)
{
    OWNED_BY(bs_shown_close) bs_shown shown = {0};
    bs_steps steps[BS_STEPS_KINDS];
    bs_layer at = begin(ctx, &shown, steps, run, layer, b, true);
    at.w = w;
    at.g = g;
    MUST(bs_read_given(ctx, run, layer, b));
    for (size_t i = 0; i < sizeof backward_stages / sizeof *backward_stages; i++)
        MUST(run_stage(ctx, run, &at, &backward_stages[i], b, d));
    if (b->values[MB_GIVEN_WEIGHTS] == NULL) return ASSAY_OK;
    return bs_write_tensor(ctx, run, layer, "gradients/inputs", "routing_weights", d, MB_CHOICE_WEIGHTS);
}

/* --- residuals between forward and backward --- */

/* Where a residual lies in the store, and whether it is offloaded. */
static const struct {
    bs_tensor tensor;
    int slot;
    bool offloaded;
} residuals[] = {
    {MB_LAYER_INPUTS, ASSAY_REMAT_DECODER_LAYER_INPUT, true},
    {MB_MLA_OUT, ASSAY_REMAT_OUT_PROJ, false}, /* with the residual addition */
    {MB_ATTN_OUT, ASSAY_REMAT_ATTENTION_OUT, true},
    {MB_LSE, ASSAY_REMAT_LSE, false},
    {MB_MLPWI_0, ASSAY_REMAT_MOE_MLPWI_0, true},
    {MB_MLPWI_1, ASSAY_REMAT_MOE_MLPWI_1, true},
};
enum { RESIDUALS = sizeof residuals / sizeof *residuals };

static int64_t rolled_bytes(const bs_run *run)
{
    return bs_count(run, MB_ROLLED) * (int64_t)sizeof(int32_t);
}

assay_status bs_keep(assay_context *ctx, const bs_run *run, int64_t layer, bool offload, bs_microbatch *b)
{
    assay_remat_store *store = run->stack->store;
    for (int i = 0; i < RESIDUALS; i++) {
        const bs_tensor tensor = residuals[i].tensor;
        const assay_remat_action action = offload && residuals[i].offloaded ? ASSAY_OFFLOAD : ASSAY_DEVICE;
        for (int64_t m = 0; m < run->factor; m++) {
            MUST(assay_remat_hold(ctx, store, layer * run->factor + m, residuals[i].slot, action, bs_count(run, tensor),
                                  &b[m].values[tensor]));
        }
    }
    assay_remat_kept(store, rolled_bytes(run));
    return ASSAY_OK;
}

assay_status bs_restore(assay_context *ctx, const bs_run *run, int64_t layer, bs_microbatch *b)
{
    for (int i = 0; i < RESIDUALS; i++) {
        for (int64_t m = 0; m < run->factor; m++) {
            MUST(assay_remat_load(ctx, run->stack->store, layer * run->factor + m, residuals[i].slot,
                                  &b[m].values[residuals[i].tensor]));
        }
    }
    return ASSAY_OK;
}

assay_remat_report bs_layer_model(const bs_run *run, bool offload)
{
    assay_remat_report report = {0};
    for (int i = 0; i < RESIDUALS; i++) {
        const int64_t bytes = run->factor * bs_count(run, residuals[i].tensor) * (int64_t)sizeof(double);
        if (offload && residuals[i].offloaded) {
            report.bytes_offloaded += bytes;
        } else {
            report.bytes_kept += bytes;
        }
    }
    report.bytes_kept += rolled_bytes(run);
    report.operations_recomputed = (double)run->factor * (bs_mla_remat_flops(run) + bs_moe_remat_flops(run));
    return report;
}
