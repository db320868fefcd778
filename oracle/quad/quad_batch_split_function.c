/* The functions of the batch-split module one by one, naively, shard after shard; a NAME_bwd is the central difference of
 * NAME by every number that it is differentiated by. The forward functions are in the files beside this one, by topic. */
#include <quadmath.h>
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"

static assay_status evaluate(quad_call *c)
{
    const quad_named_function *const topics[] = {quad_weight_functions, quad_mla_functions, quad_routing_functions,
                                                 quad_moe_functions};
    for (size_t i = 0; i < sizeof topics / sizeof *topics; i++) {
        for (const quad_named_function *f = topics[i]; f->name != NULL; f++) {
            if (strcmp(f->name, c->view->name) == 0) return f->evaluate(c);
        }
    }
    return assay_fail(c->ctx, ASSAY_INTERNAL, "%s has no second form", c->view->name);
}

/* The sum over results of upstream gradients times them. */
static assay_status loss_of(quad_call *c, const quad *const *cotangents, quad *loss)
{
    const assay_status status = evaluate(c);
    *loss = 0;
    for (int i = 0; status == ASSAY_OK && i < c->out.count; i++) {
        for (int64_t k = 0; cotangents[i] != NULL && k < assay_shape_count(&c->out.items[i].shape); k++)
            *loss += cotangents[i][k] * c->out.items[i].values[k];
    }
    return status;
}

/* dL by every number of a tensor, in place of them: what the difference leaves out is of the order of 1e-20. */
static assay_status differentiate(quad_call *c, const quad *const *cotangents, const quad_tensor *by,
                                  quad *gradient)
{
    assay_status status = ASSAY_OK;
    const int64_t count = assay_shape_count(&by->shape);
    quad size = 0;
    for (int64_t i = 0; i < count; i++) size = fmaxq(size, fabsq(by->values[i]));
    const quad step = (size > 0 ? size : 1) * 1e-10Q;
    for (int64_t i = 0; i < count; i++) {
        const quad value = by->values[i];
        quad above = 0, below = 0;
        by->values[i] = value + step;
        TRY(loss_of(c, cotangents, &above));
        by->values[i] = value - step;
        TRY(loss_of(c, cotangents, &below));
        by->values[i] = value;
        gradient[i] = (above - below) / (2 * step);
    }
cleanup:
    return status;
}

/* Y_grad of each result; NULL: the result is not differentiated. */
static void find_cotangents(const quad_call *c, const quad_tensors *in, const quad **cotangents)
{
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < c->out.count; i++) {
        cotangents[i] = NULL;
        for (int k = 0; k < own->count; k++) {
            const bool given = strncmp(own->items[k].path, "inputs/", 7) == 0;
            if (!given || own->items[k].holds == ASSAY_HOLDS_RESIDUAL || own->items[k].integers) continue;
            if (strcmp(c->view->counterparts[k], c->out.items[i].path) == 0)
                cotangents[i] = quad_tensors_find(in, own->items[k].path)->values;
        }
    }
}

/* One result after the other: what comes later is computed from where the earlier ones are. */
static assay_status find_offsets(quad_call *c, const quad_tensors *in)
{
    assay_status status = ASSAY_OK;
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < c->out.count; i++) {
        const quad_tensor *there = &c->out.items[i];
        for (int k = 0; k < own->count; k++) {
            char offset[2 * ASSAY_PATH_SIZE];
            quad *values = NULL;
            if (own->items[k].holds != ASSAY_HOLDS_RESIDUAL || strcmp(c->view->counterparts[k], there->path) != 0)
                continue;
            const quad_tensor *here = quad_tensors_find(in, own->items[k].path);
            TRY(evaluate(c));
            snprintf(offset, sizeof offset, "offsets/%s", strchr(there->path, '/') + 1);
            TRY(quad_tensors_add(c->ctx, &c->in, offset, &there->shape, &values));
            for (int64_t n = 0; n < assay_shape_count(&there->shape); n++)
                values[n] = here->values[n] - there->values[n];
        }
    }
cleanup:
    return status;
}

static assay_status backward(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    assay_status status;
    const assay_function_tensors *own = &c->view->own;
    const quad *cotangents[ASSAY_FUNCTION_TENSORS];
    quad *gradient = NULL, *result = NULL;
    TRY(find_offsets(c, in));
    find_cotangents(c, in, cotangents);
    for (int i = 0; i < own->count; i++) {
        const assay_shape *shape = &own->items[i].shape;
        if (strncmp(own->items[i].path, "outputs/", 8) != 0) continue;
        const quad_tensor *by = quad_tensors_find(&c->in, c->view->counterparts[i]);
        const int64_t count = assay_shape_count(shape), all = assay_shape_count(&by->shape);
        TRY(quad_alloc(c->ctx, all, &gradient));
        TRY(differentiate(c, cotangents, by, gradient));
        TRY(quad_tensors_add(c->ctx, out, own->items[i].path, shape, &result));
        for (int64_t k = 0; k < count; k++) result[k] = 0;
        for (int64_t k = 0; k < all; k++) result[k % count] += gradient[k]; /* of scales: over all shards */
        free(gradient);
        gradient = NULL;
    }
cleanup:
    free(gradient);
    return status;
}

assay_status quad_batch_split_function(assay_context *ctx, const assay_function_view *view, const quad_tensors *in,
                                       quad_tensors *out)
{
    assay_status status;
    quad_call c = {.ctx = ctx, .view = view, .config = view->config};
    TRY(quad_call_open(&c, in));
    if (view->config->recipe.recipe != NULL) {
        TRY(quad_quantised_function(&c, in, out));
    } else if (view->backward) {
        TRY(backward(&c, in, out));
    } else {
        TRY(evaluate(&c));
        for (int i = 0; i < c.out.count; i++) TRY(quad_tensors_move(ctx, &c.out, c.out.items[i].path, out));
    }
cleanup:
    quad_call_close(&c);
    return status;
}
