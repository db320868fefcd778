/* Cases that give the choice of experts, and its weights, as inputs (oracle/moe/routing.h). */
#include <inttypes.h>
#include <stdio.h>

#include "harness/operations/op_support.h"
#include "oracle/moe/permute.h"

/* inputs/LAYER name, and what the case says of it; NULL: it does not give it. */
static const assay_case_input *given(const assay_case *c, const char *layer, const char *name,
                                     char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "inputs/%.60s%.60s", layer, name);
    return assay_case_input_of(c, path);
}

bool assay_gives_routing_weights(const assay_case *c, const char *layer)
{
    char path[ASSAY_PATH_SIZE];
    return given(c, layer, "routing_weights", path) != NULL;
}

bool assay_gives_choice(const assay_case *c)
{
    bool gives = c->config.use_random_routing;
    for (int i = 0; i < c->input_count; i++) gives |= assay_path_ends(c->inputs[i].path, "selected_experts");
    return gives;
}

static assay_status check(const assay_describer *d, const assay_routing_config *config, bool ids, bool weights)
{
    assay_context *ctx = d->ctx;
    const assay_model_config *m = &d->c->config;
    if (weights && !ids) {
        return assay_refuse(ctx, "inputs.%srouting_weights is given, expected inputs.%sselected_experts beside it",
                            d->layer, d->layer);
    }
    const char *above = config->load_balance_loss_weight > 0  ? "load_balance_loss_weight"
                        : config->z_loss_weight > 0           ? "router_z_loss_weight"
                        : config->routed_bias_update_rate > 0 ? "routed_bias_update_rate"
                                                              : NULL;
    if (weights && above != NULL) {
        return assay_refuse(ctx, "%s is above 0, expected 0: with inputs.%srouting_weights there is no router", above,
                            d->layer);
    }
    if (ids && config->hash_rows > 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_first_num_hash_layers, "0: the choice is given");
    }
    if (m->use_random_routing && !m->sparse_matmul) {
        /* MaxText's dense form keeps one weight of an expert that a token has twice */
        return assay_refuse(ctx, "use_random_routing needs sparse_matmul=true, found sparse_matmul=false");
    }
    return ASSAY_OK;
}

void assay_describe_choice_input(assay_describer *d, const assay_routing_config *config)
{
    const assay_model_config *m = &d->c->config;
    const assay_fill random = assay_fill_range(ASSAY_INTEGERS, 0.0, (double)(config->num_experts - 1));
    char ids[ASSAY_PATH_SIZE], weights[ASSAY_PATH_SIZE];
    const bool has_ids = given(d->c, d->layer, "selected_experts", ids) != NULL || m->use_random_routing;
    const bool has_weights = given(d->c, d->layer, "routing_weights", weights) != NULL;
    if (d->status == ASSAY_OK) d->status = check(d, config, has_ids, has_weights);
    if (!has_ids) return;
    assay_describe(d, ids, ASSAY_INT32, &random, "BSK");
    assay_described(d, 1)->least = ASSAY_NO_EXPERT;
    assay_described(d, 1)->most = (int32_t)(config->num_experts - 1);
    if (!has_weights) return;
    assay_describe_variable(d, weights, assay_fill_range(ASSAY_UNIFORM, 0.0, 1.0), "BSK");
    assay_described(d, 2)->unused_row_axes = 2; /* beside ids of -1 */
}
