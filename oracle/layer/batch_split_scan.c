/* The scan over the layers (MaxText scan_batch_split_layers; of one layer alone batch_split_layer): prologue, middle
 * and epilogue differ in what is prefetched, deferred and reduced, which the two loops below say in place. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/layer/batch_split_steps.h"
#include "oracle/layer/schedule_groups.h"

struct assay_batch_split {
    bs_run run;
    int64_t first, layers;               /* of the stack */
    int32_t **selected_experts;          /* [layers]: of the last microbatch */
    bs_weights last;                     /* gathered, of the last layer: backward begins with it */
    double *xs[ASSAY_MOST_MICROBATCHES]; /* activations of each microbatch, or their gradients */
};

void bs_run_of(bs_run *run, const stack_run *stack)
{
    const assay_stack_config *config = stack->config;
    *run = (bs_run){.stack = stack,
                    .mesh = &config->sharding.mesh,
                    .factor = config->batch_split_factor,
                    .sizes = assay_batch_split_sizes_of(config),
                    .mla = config->mla,
                    .routing = config->moe.routing};
    run->mla.batch = run->sizes.rows;
    bs_attention_graph(&run->attention, run, NULL);
    run->routing.batch = run->sizes.rows;
}

void assay_batch_split_close(assay_batch_split *split)
{
    if (split == NULL) return;
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        free(split->xs[i]);
        free(split->run.yarn_freqs[i]);
    }
    for (int64_t layer = 0; split->selected_experts != NULL && layer < split->layers; layer++)
        free(split->selected_experts[layer]);
    free(split->selected_experts);
    bs_weights_free(&split->last);
    assay_schedule_free(&split->run.schedule);
    free(split);
}

static assay_status make_freqs(assay_context *ctx, bs_run *run)
{
    const int64_t half = run->mla.rope.dim / 2, tokens = run->stack->tokens;
    OWNED double *all = NULL;
    MUST(assay_alloc_f64(ctx, "rotation angles", tokens * half, &all));
    assay_rope_angles(ctx, all, run->stack->positions, tokens, &run->mla.rope);
    for (int64_t m = 0; m < run->factor; m++) {
        MUST(
            bs_alloc_shards(ctx, run, "rotation angles", run->sizes.tokens, half, sizeof(double), &run->yarn_freqs[m]));
        bs_move_rows(run, m, all, run->yarn_freqs[m], (size_t)(run->mla.sequence * half) * sizeof *all, false);
    }
    return ASSAY_OK;
}

static assay_status open_split(assay_context *ctx, const stack_run *stack, assay_batch_split **split)
{
    MUST(assay_alloc(ctx, "batch-split schedule", 1, sizeof **split, split));
    **split = (assay_batch_split){.first = stack->config->dense_layers,
                                  .layers = stack->config->layers - stack->config->dense_layers};
    bs_run *run = &(*split)->run;
    bs_run_of(run, stack);
    MUST(assay_alloc(ctx, "selected_experts", (*split)->layers, sizeof *(*split)->selected_experts,
                     &(*split)->selected_experts));
    for (int64_t layer = 0; layer < (*split)->layers; layer++) (*split)->selected_experts[layer] = NULL;
    for (int64_t m = 0; m < run->factor; m++) {
        MUST(assay_alloc_f64(ctx, "activations of a microbatch", bs_count(run, MB_OUTPUTS), &(*split)->xs[m]));
    }
    return make_freqs(ctx, run);
}

/* Layers here count from 0 within the schedule. */
static assay_status note(assay_context *ctx, assay_batch_split *split, bool backward, assay_stage stage, int64_t layer)
{
    return assay_schedule_add(ctx, &split->run.schedule, backward, stage, split->first + layer, -1);
}

static assay_status gather(assay_context *ctx, assay_batch_split *split, bool backward, int64_t layer, bs_weights *w)
{
    OWNED_BY(bs_weights_free) bs_weights scattered = {0};
    MUST(note(ctx, split, backward, ASSAY_STAGE_GATHER_WEIGHTS, layer));
    MUST(bs_weights_alloc(ctx, &split->run, &scattered, false, NULL));
    MUST(bs_extract_layer_weights(ctx, &split->run, &scattered, split->first + layer));
    MUST(bs_weights_alloc(ctx, &split->run, w, true, NULL));
    bs_gather_weights(&split->run, w, &scattered);
    return ASSAY_OK;
}

static void pass_on(bs_weights *to, bs_weights *from)
{
    bs_weights_free(to);
    *to = *from;
    *from = (bs_weights){0};
}

/* What is left of the last microbatch of a layer, before its unroute, or the gradients of that. */
static void move_last(bs_microbatch *to, bs_microbatch *from)
{
    static const bs_tensor left[] = {MB_MOE_INPUTS, MB_ROUTED_OUT, MB_SHARED_OUT, MB_ROLLED};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) bs_move(to, from, left[i]);
}

/* It is put together again. */
static assay_status unroute_last(assay_context *ctx, assay_batch_split *split, int64_t layer, bs_microbatch *last)
{
    const int64_t m = split->run.factor - 1;
    bs_steps steps[BS_STEPS_SUM + 1];
    const bs_layer at = {.run = &split->run, .steps = steps};
    bs_sum_steps(&steps[BS_STEPS_SUM], &split->run);
    MUST(assay_schedule_add(ctx, &split->run.schedule, false, ASSAY_STAGE_UNROUTE, split->first + layer, m));
    bs_lend(last, MB_OUTPUTS, split->xs[m]);
    MUST(bs_unroute_ubatch(ctx, &at, last));
    bs_microbatch_free(last, &split->run);
    return ASSAY_OK;
}

static assay_status layer_forward_split(assay_context *ctx, assay_batch_split *split, int64_t layer,
                                        bs_microbatch *last, const bs_weights *w)
{
    assay_status status = ASSAY_OK;
    bs_microbatch b[ASSAY_MOST_MICROBATCHES] = {0};
    bs_run *run = &split->run;
    const bool offload = layer < split->layers - 1;
    for (int64_t m = 0; m < run->factor; m++) {
        bs_lend(&b[m], MB_OUTPUTS, split->xs[m]);
        TRY(bs_copy(ctx, run, &b[m], MB_LAYER_INPUTS, MB_OUTPUTS));
    }
    TRY(bs_batch_split_schedule(ctx, run, split->first + layer, b, w));
    move_last(last, &b[run->factor - 1]);
    if (run->stack->store != NULL) {
        const int64_t count = bs_count(run, MB_ROLLED);
        TRY(assay_alloc_i32(ctx, "selected_experts", count, &split->selected_experts[layer]));
        memcpy(split->selected_experts[layer], last->indices[MB_ROLLED], (size_t)count * sizeof(int32_t));
        if (offload) TRY(note(ctx, split, false, ASSAY_STAGE_OFFLOAD, layer));
        TRY(bs_keep(ctx, run, split->first + layer, offload, b));
    }
cleanup:
    for (int64_t m = 0; m < run->factor; m++) bs_microbatch_free(&b[m], run);
    return status;
}

static assay_status scan_forward(assay_context *ctx, assay_batch_split *split)
{
    assay_status status;
    const int64_t layers = split->layers;
    bs_weights w = {0}, next = {0};
    bs_microbatch last = {0};
    TRY(gather(ctx, split, false, 0, &w));
    if (layers > 1) TRY(gather(ctx, split, false, 1, &next));
    for (int64_t layer = 0; layer < layers; layer++) {
        TRY(layer_forward_split(ctx, split, layer, &last, &w));
        if (layer + 1 < layers) pass_on(&w, &next);
        /* the weights of the layer after the next one are on their way when this one's last microbatch is combined */
        if (layer + 2 < layers) TRY(gather(ctx, split, false, layer + 2, &next));
        TRY(unroute_last(ctx, split, layer, &last));
    }
    if (split->run.stack->store != NULL) pass_on(&split->last, &w);
cleanup:
    bs_microbatch_free(&last, &split->run);
    bs_weights_free(&next);
    bs_weights_free(&w);
    return status;
}

/* Gradients of weights on their way: of the layer done last, as its shards have them, and of the one before it,
 * scattered. */
typedef struct gradients {
    bs_weights behind, scattered;
} gradients;

static assay_status scatter(assay_context *ctx, assay_batch_split *split, int64_t layer, bs_weights *scattered,
                            bs_weights *behind)
{
    MUST(note(ctx, split, true, ASSAY_STAGE_REDUCE_SCATTER_WS_GRAD, layer));
    MUST(bs_weights_alloc(ctx, &split->run, scattered, false, behind));
    MUST(bs_reduce_scatter_ws_grad(ctx, &split->run, scattered, behind));
    bs_weights_free(behind);
    return ASSAY_OK;
}

static assay_status finish(assay_context *ctx, assay_batch_split *split, int64_t layer, bs_weights *scattered)
{
    MUST(note(ctx, split, true, ASSAY_STAGE_ALL_REDUCE_WS_GRAD_DCN, layer));
    MUST(bs_all_reduce_ws_grad_dcn(ctx, &split->run, scattered));
    MUST(note(ctx, split, true, ASSAY_STAGE_INSERT_LAYER_WS_GRAD, layer));
    MUST(bs_insert_layer_ws_grad(ctx, &split->run, scattered, split->first + layer));
    bs_weights_free(scattered);
    return ASSAY_OK;
}

/* The gradients of the layers behind: one further each. */
static assay_status advance(assay_context *ctx, assay_batch_split *split, int64_t layer, gradients *g)
{
    OWNED_BY(bs_weights_free) bs_weights scattered = {0};
    if (layer + 1 < split->layers) MUST(scatter(ctx, split, layer + 1, &scattered, &g->behind));
    if (layer + 2 < split->layers) MUST(finish(ctx, split, layer + 2, &g->scattered));
    pass_on(&g->scattered, &scattered);
    return ASSAY_OK;
}

static assay_status unroute_last_bwd(assay_context *ctx, assay_batch_split *split, int64_t layer, bs_microbatch *d_last)
{
    const int64_t m = split->run.factor - 1;
    bs_steps steps[BS_STEPS_SUM + 1];
    const bs_layer at = {.run = &split->run, .steps = steps};
    bs_sum_steps(&steps[BS_STEPS_SUM], &split->run);
    bs_microbatch last = {0};
    MUST(assay_schedule_add(ctx, &split->run.schedule, true, ASSAY_STAGE_UNROUTE_BWD, split->first + layer, m));
    bs_lend_indices(&last, MB_ROLLED, split->selected_experts[layer]);
    bs_lend(d_last, MB_OUTPUTS, split->xs[m]);
    return bs_unroute_ubatch_bwd(ctx, &at, &last, d_last);
}

static assay_status layer_backward_split(assay_context *ctx, assay_batch_split *split, int64_t layer,
                                         bs_microbatch *d_last, const bs_weights *w, bs_weights *g)
{
    assay_status status;
    bs_microbatch b[ASSAY_MOST_MICROBATCHES] = {0}, d[ASSAY_MOST_MICROBATCHES] = {0};
    bs_run *run = &split->run;
    TRY(bs_restore(ctx, run, split->first + layer, b));
    for (int64_t m = 0; m < run->factor; m++) {
        bs_lend(&d[m], MB_OUTPUTS, split->xs[m]);
        bs_lend(&d[m], MB_LAYER_INPUTS, split->xs[m]);
    }
    move_last(&d[run->factor - 1], d_last);
    TRY(bs_weights_alloc(ctx, run, g, true, NULL));
    bs_drop_unwanted(run, g, split->first + layer);
    TRY(bs_batch_split_schedule_bwd(ctx, run, split->first + layer, b, d, w, g));
cleanup:
    for (int64_t m = 0; m < run->factor; m++) bs_microbatch_free(&b[m], run);
    for (int64_t m = 0; m < run->factor; m++) bs_microbatch_free(&d[m], run);
    return status;
}

static assay_status scan_backward(assay_context *ctx, assay_batch_split *split)
{
    assay_status status = ASSAY_OK;
    const int64_t layers = split->layers;
    bs_weights w = {0}, previous = {0};
    bs_microbatch d_last = {0};
    gradients g = {0};
    pass_on(&w, &split->last);
    for (int64_t layer = layers - 1; layer >= 0; layer--) {
        if (layer > 0) TRY(gather(ctx, split, true, layer - 1, &previous));
        TRY(advance(ctx, split, layer, &g));
        if (layer == layers - 1) {
            TRY(unroute_last_bwd(ctx, split, layer, &d_last));
        } else {
            TRY(note(ctx, split, true, ASSAY_STAGE_FETCH, layer));
        }
        TRY(layer_backward_split(ctx, split, layer, &d_last, &w, &g.behind));
        bs_microbatch_free(&d_last, &split->run);
        pass_on(&w, &previous);
        if (layer > 0) TRY(unroute_last_bwd(ctx, split, layer - 1, &d_last));
    }
    if (layers > 1) TRY(finish(ctx, split, 1, &g.scattered));
    TRY(scatter(ctx, split, 0, &g.scattered, &g.behind));
    TRY(finish(ctx, split, 0, &g.scattered));
cleanup:
    bs_microbatch_free(&d_last, &split->run);
    bs_weights_free(&w);
    bs_weights_free(&previous);
    bs_weights_free(&g.behind);
    bs_weights_free(&g.scattered);
    return status;
}

/* Scheduling groups of the events, and barriers between them. */
static assay_status write_hints(assay_context *ctx, const assay_sink *out, const assay_schedule *schedule,
                                const assay_schedule_dims *dims)
{
    OWNED int32_t *groups = NULL, *barriers = NULL;
    const int64_t count = assay_schedule_barrier_count(dims) * ASSAY_BARRIER_FIELDS;
    if (assay_wants(out, "schedule/groups")) {
        MUST(assay_alloc_i32(ctx, "schedule/groups", schedule->count, &groups));
        assay_schedule_groups(schedule->events, schedule->count, dims, groups);
        MUST(out->write_i32(ctx, out->self, "schedule/groups", schedule->count, groups));
    }
    if (assay_wants(out, "schedule/barriers")) {
        MUST(assay_alloc_i32(ctx, "schedule/barriers", count, &barriers));
        MUST(assay_schedule_barriers(ctx, schedule->events, schedule->count, dims, barriers));
        MUST(out->write_i32(ctx, out->self, "schedule/barriers", count, barriers));
    }
    return ASSAY_OK;
}

/* The events of the run, held against the rules before anybody else is, and what belongs to them. */
static assay_status write_events(assay_context *ctx, const assay_batch_split *split, bool backward)
{
    assay_status status = ASSAY_OK;
    const assay_schedule *schedule = &split->run.schedule;
    const assay_sink *out = split->run.stack->out;
    const assay_schedule_dims dims = {split->first, split->layers, split->run.factor, backward};
    char reason[ASSAY_MESSAGE_SIZE];
    status = assay_schedule_check(ctx, schedule->events, schedule->count, &dims);
    if (status == ASSAY_BAD_INPUT) {
        memcpy(reason, ctx->message, sizeof reason);
        return assay_fail(ctx, ASSAY_INTERNAL, "the run broke a rule: %.900s", reason);
    }
    if (status == ASSAY_OK && assay_wants(out, "schedule/events")) {
        status =
            out->write_i32(ctx, out->self, "schedule/events", schedule->count * ASSAY_EVENT_FIELDS, schedule->events);
    }
    return status == ASSAY_OK ? write_hints(ctx, out, schedule, &dims) : status;
}

static void move_batch(const assay_batch_split *split, double *batch, bool to_batch)
{
    const bs_run *run = &split->run;
    const size_t row = (size_t)(run->mla.sequence * run->mla.emb_dim) * sizeof *batch;
    for (int64_t m = 0; m < run->factor; m++) bs_move_rows(run, m, batch, split->xs[m], row, to_batch);
}

assay_status assay_batch_split_forward(assay_context *ctx, const struct stack_run *stack, assay_batch_split **split,
                                       double **x)
{
    MUST(open_split(ctx, stack, split));
    move_batch(*split, *x, false);
    MUST(scan_forward(ctx, *split));
    move_batch(*split, *x, true);
    if (stack->store == NULL) MUST(write_events(ctx, *split, false));
    return ASSAY_OK;
}

assay_status assay_batch_split_backward(assay_context *ctx, const struct stack_run *stack, assay_batch_split *split,
                                        double *dy)
{
    split->run.stack = stack;
    move_batch(split, dy, false);
    MUST(scan_backward(ctx, split));
    move_batch(split, dy, true);
    return write_events(ctx, split, true);
}
