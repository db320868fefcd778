#include "harness/golden/layer_run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/operations/sketched_run.h"
#include "oracle/base/ranks.h"
#include "oracle/layer/decoder_stack.h"

static assay_status refuse(assay_context *ctx, const assay_plan *plan, const char *what, const char *why)
{
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s goes a layer at a time, and %s", plan->c->name, what, why);
}

assay_status assay_layers_check(assay_context *ctx, const assay_plan *plan, const char *what, int64_t *layers)
{
    assay_stack_config config;
    char why[ASSAY_MESSAGE_SIZE / 2];
    if (!assay_is_stack(plan->c)) {
        snprintf(why, sizeof why, "op %s is no stack of layers", plan->c->op);
        return refuse(ctx, plan, what, why);
    }
    MUST(assay_stack_config_of(ctx, plan->c, &config));
    *layers = config.layers;
    if (plan->c->only_layer >= 0) return refuse(ctx, plan, what, "only_layer leaves one alone");
    if (config.batch_split_factor > 0) return refuse(ctx, plan, what, "the batch-split schedule has two at once");
    if (plan->precision_count > 0)
        return refuse(ctx, plan, what, "error scales are of the layers' own goldens: profiles has to be none");
    for (int slot = 0; slot < ASSAY_REMAT_NAMES; slot++) {
        if (slot == ASSAY_REMAT_DECODER_LAYER_INPUT) continue;
        if (assay_remat_action_of(&config.policy, slot) == ASSAY_REMAT) continue;
        snprintf(why, sizeof why, "keeps nothing between forward and backward: %s has to be remat",
                 assay_remat_names[slot]);
        return refuse(ctx, plan, what, why);
    }
    return ASSAY_OK;
}

static assay_case window(const assay_plan *plan, int64_t layer)
{
    assay_case c = *plan->c;
    c.only_layer = layer;
    return c;
}

int64_t assay_layers_memory(const assay_plan *plan, int64_t layers)
{
    int64_t most = 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        const assay_case c = window(plan, layer);
        const int64_t bytes = assay_operation_memory(plan->operation, &c);
        if (bytes > most) most = bytes;
    }
    return most;
}

int64_t assay_layer_of(const char *path)
{
    static const char folder[] = "/layers/";
    const char *found = strstr(path, folder);
    return found == NULL || found[sizeof folder - 1] < '0' || found[sizeof folder - 1] > '9'
               ? -1
               : strtoll(found + sizeof folder - 1, NULL, 10);
}

bool assay_is_of_layer(const assay_tensor_spec *spec, int64_t layer, bool backward)
{
    const bool gradient = spec->role == ASSAY_ROLE_GRADIENT;
    const bool result = gradient || assay_role_is_result(spec->role);
    return result && gradient == backward && assay_layer_of(spec->path) == layer;
}

void assay_boundary_path(int64_t layer, bool gradient, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "%scheckpoints/layers/%" PRId64 "/decoder_layer_input",
             gradient ? "gradients/" : "", layer);
}

assay_status assay_layer_run(assay_context *ctx, const assay_plan *plan, int64_t layer, bool backward,
                             const assay_source *in, const assay_sink *out)
{
    assay_status status;
    assay_stack_config config;
    assay_sketching sketching = {0};
    const assay_case c = window(plan, layer);
    TRY(assay_stack_config_of(ctx, &c, &config));
    TRY(assay_sketching_open(ctx, &sketching, &c, &plan->list, out, NULL, 0));
    const assay_sink sketches = assay_sketching_sink(&sketching);
    assay_ranks_writer writer;
    const assay_sink shared = assay_ranks_sink_open(ctx, &writer, &sketches);
    status =
        backward ? assay_stack_run_backward(ctx, &config, in, &shared) : assay_stack_run(ctx, &config, in, &shared);
    assay_ranks_sink_close(&writer);
cleanup:
    assay_sketching_close(&sketching);
    return status;
}
