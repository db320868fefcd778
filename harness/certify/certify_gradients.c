/* Whether the tape's gradients are derivatives: central differences in binary128 along random directions. */
#include <quadmath.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/certify/certify_internal.h"
#include "oracle/base/memory.h"

/* L and the sum of the sizes of its terms. A cotangent that is no number stands on a row that belongs to nothing (or
 * else the gradient is no number either, which is found) and is left out; so is an output that is none (the lse of a
 * query that sees nothing), which depends on nothing. */
typedef struct weighted_sum {
    quad value, size;
} weighted_sum;

/* cotangents: under the paths of their outputs. */
static assay_status sum_up(assay_context *ctx, const quad_tensors *cotangents, const quad_tensors *out,
                           weighted_sum *loss)
{
    *loss = (weighted_sum){0};
    for (int i = 0; i < cotangents->count; i++) {
        const quad_tensor *cotangent = &cotangents->items[i];
        const int64_t count = assay_shape_count(&cotangent->shape);
        const quad *output = NULL;
        MUST(quad_read(ctx, out, cotangent->path, count, &output));
        for (int64_t j = 0; j < count; j++) {
            if (!finiteq(cotangent->values[j]) || !finiteq(output[j])) continue;
            const quad term = cotangent->values[j] * output[j];
            loss->value += term;
            loss->size += fabsq(term);
        }
    }
    return ASSAY_OK;
}

/* A gradient, and the tensor that it is of. */
typedef struct moved {
    const quad_tensor *gradient;
    int tensor; /* its place in `in` */
    quad size;  /* the root of the mean square of the tensor: how far it moves with a step of 1 */
} moved;

/* A direction of random signs in some tensors, and what was found along it. */
typedef struct line {
    const moved *tensors;
    int64_t count;
    uint64_t seed;
    bool kink;
    quad along, derivative, error, scale, allowed;
} line;

typedef struct checking {
    const quad_operation *operation;
    const void *config;
    const quad_tensors *in;
    const quad_tensors *outputs; /* that have cotangents, which are their numbers here */
    const quad_budget *budget;
    weighted_sum base;
    moved *tensors;
    line *lines;
    int64_t tensor_count, count;
    bool large;
} checking;

static assay_status evaluate_loss(assay_context *ctx, const checking *all, const quad_tensors *in, weighted_sum *loss)
{
    OWNED_BY(quad_tensors_free) quad_tensors out = {0};
    MUST(quad_evaluate(ctx, all->operation->form, all->config, in, all->outputs, &out));
    return sum_up(ctx, all->outputs, &out, loss);
}

/* The loss at the inputs moved by `step` along the line; numbers that are none stay where they are. */
static assay_status loss_at(assay_context *ctx, const checking *all, const line *l, quad step, weighted_sum *loss)
{
    assay_status status;
    void *items = NULL;
    uint64_t seed = l->seed;
    int64_t own = 0; /* tensors that have values of their own */
    TRY(assay_alloc(ctx, "list of tensors", all->in->count, sizeof *all->in->items, &items));
    const quad_tensors in = {memcpy(items, all->in->items, (size_t)all->in->count * sizeof *in.items), all->in->count};
    for (; own < l->count; own++) {
        const moved *m = &l->tensors[own];
        const quad_tensor *origin = &all->in->items[m->tensor];
        const int64_t count = assay_shape_count(&origin->shape);
        quad *values = NULL;
        TRY(quad_alloc(ctx, count, &values));
        in.items[m->tensor].values = values;
        for (int64_t i = 0; i < count; i++) {
            const bool negative = quad_next_random(&seed) & 1;
            values[i] = origin->values[i] + (finiteq(origin->values[i]) ? (negative ? -step : step) * m->size : 0);
        }
    }
    TRY(evaluate_loss(ctx, all, &in, loss));
cleanup:
    for (int64_t i = 0; i < own; i++) free(in.items[l->tensors[i].tensor].values);
    free(items);
    return status;
}

/* 1 where all numbers are 0. */
static quad size_of(const quad_tensor *tensor)
{
    quad squares = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < assay_shape_count(&tensor->shape); i++) {
        if (!finiteq(tensor->values[i])) continue;
        squares += tensor->values[i] * tensor->values[i];
        finite++;
    }
    return squares > 0 ? sqrtq(squares / finite) : 1;
}

/* The gradient along the line, and its norm. */
static void measure(const checking *all, line *l)
{
    uint64_t seed = l->seed;
    quad squares = 0;
    for (int64_t k = 0; k < l->count; k++) {
        const moved *m = &l->tensors[k];
        const quad *origin = all->in->items[m->tensor].values, *gradient = m->gradient->values;
        for (int64_t i = 0; i < assay_shape_count(&m->gradient->shape); i++) {
            const bool negative = quad_next_random(&seed) & 1;
            const quad term = gradient[i] * m->size;
            squares += term * term;
            if (finiteq(origin[i])) l->along += negative ? -term : term;
        }
    }
    l->scale = sqrtq(squares);
}

/* The step shrinks while the two one-sided differences disagree: with a smooth line their distance shrinks along,
 * however much it is curved; with a kink it stays, or the rounding of binary128 is reached first. */
static assay_status run_line(assay_context *ctx, const checking *all, line *l)
{
    const quad small = 1e-7;
    quad wider = 0, step = ldexpq(1, -32);
    measure(all, l);
    for (bool first = true;; first = false, step /= 16) {
        weighted_sum above, below;
        MUST(loss_at(ctx, all, l, step, &above));
        MUST(loss_at(ctx, all, l, -step, &below));
        const quad noise = ldexpq(all->base.size, -100) / step; /* some thousand roundings of L */
        const quad jump = fabsq(above.value - 2 * all->base.value + below.value) / step;
        l->derivative = (above.value - below.value) / (2 * step);
        const quad scale = fmaxq(l->scale, fabsq(l->derivative));
        if (!(jump > small * scale + noise)) {
            l->scale = scale;
            l->error = fabsq(l->along - l->derivative);
            if (l->error <= noise) l->error = 0;
            l->allowed = QUAD_ALLOWED_RELATIVE * scale;
            break;
        }
        l->kink = (!first && jump > wider / 4 + noise) || 16 * noise > QUAD_ALLOWED_RELATIVE * scale;
        if (l->kink) break;
        wider = jump;
    }
    return ASSAY_OK;
}

/* Every line by itself, so that the number of threads changes nothing; of several failures the first one counts. */
static assay_status run_lines(assay_context *ctx, const checking *all)
{
    assay_status first = ASSAY_OK;
    int64_t failed = all->count;
#pragma omp parallel for num_threads(all->large ? 1 : ctx->threads) schedule(dynamic)
    for (int64_t i = 0; i < all->count; i++) {
        assay_context own = *ctx;
        if (!all->large) own.threads = 1;
        assay_status status = run_line(&own, all, &all->lines[i]);
#pragma omp critical(quad_line_is_done)
        {
            if (status != ASSAY_OK && i < failed) {
                failed = i;
                first = status;
                memcpy(ctx->message, own.message, sizeof ctx->message);
            }
            if (all->budget->advance != NULL)
                all->budget->advance(all->budget->self, all->lines[i].tensors[0].gradient->path);
        }
    }
    return first;
}

/* gradients/ that are of a tensor of `in`; lines along each of them, or, of large ones, along all together. */
static assay_status list_lines(assay_context *ctx, const quad_tensors *references, checking *all)
{
    const int64_t directions = all->budget->directions;
    MUST(assay_alloc(ctx, "list of gradients", references->count, sizeof *all->tensors, &all->tensors));
    for (int i = 0; i < references->count; i++) {
        const quad_tensor *gradient = &references->items[i];
        if (!assay_begins(gradient->path, "gradients/")) continue;
        const quad_tensor *of = quad_tensors_find(all->in, gradient->path + strlen("gradients/"));
        if (of != NULL) all->tensors[all->tensor_count++] = (moved){gradient, (int)(of - all->in->items), size_of(of)};
    }
    MUST(assay_alloc(ctx, "list of directions", all->tensor_count * directions, sizeof *all->lines, &all->lines));
    const int64_t together = all->large ? all->tensor_count : 1;
    for (int64_t first = 0; first < all->tensor_count; first += together) {
        uint64_t random = all->budget->seed;
        for (int64_t k = 0; k < directions; k++)
            all->lines[all->count++] = (line){all->tensors + first, together, .seed = quad_next_random(&random)};
    }
    return ASSAY_OK;
}

/* The outputs that L is of. */
static assay_status list_outputs(assay_context *ctx, const quad_tensors *in, quad_tensors *outputs)
{
    for (int i = 0; i < in->count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (!assay_begins(in->items[i].path, "cotangents/")) continue;
        snprintf(path, sizeof path, "outputs/%s", in->items[i].path + strlen("cotangents/"));
        MUST(quad_tensors_list(ctx, outputs, path, &in->items[i]));
    }
    return ASSAY_OK;
}

/* The loss where nothing is moved: of the results that there are, if there are all. */
static assay_status find_base(assay_context *ctx, const quad_tensors *references, checking *all)
{
    bool there = true;
    for (int i = 0; i < all->outputs->count; i++)
        there &= quad_tensors_find(references, all->outputs->items[i].path) != NULL;
    return there ? sum_up(ctx, all->outputs, references, &all->base) : evaluate_loss(ctx, all, all->in, &all->base);
}

/* What the directions of a gradient have found goes into its certificate; that of sums of signs has none. */
static void conclude(const checking *all, quad_certificates *certificates)
{
    for (int64_t i = 0; i < all->count; i++) {
        const line *l = &all->lines[i];
        for (int64_t k = 0; k < l->count * certificates->count; k++) {
            quad_certificate *certificate = &certificates->items[k % certificates->count];
            if (strcmp(certificate->path, l->tensors[k / certificates->count].gradient->path) != 0) continue;
            certificate->kinks += l->kink;
            if (l->kink) continue;
            quad_note(certificate, &(quad_comparison){.index = -1,
                                                      .computed = l->along,
                                                      .reference = l->derivative,
                                                      .error = l->error,
                                                      .scale = l->scale,
                                                      .allowed = l->allowed});
        }
    }
}

assay_status quad_check_derivatives(assay_context *ctx, const quad_operation *operation, const void *config,
                                    const quad_tensors *in, const quad_tensors *references, const quad_budget *budget,
                                    quad_certificates *certificates)
{
    assay_status status;
    int64_t numbers = 0;
    quad_tensors outputs = {0};
    checking all = {.operation = operation, .config = config, .in = in, .outputs = &outputs, .budget = budget};
    for (int i = 0; i < in->count; i++) numbers += assay_shape_count(&in->items[i].shape);
    all.large = numbers >= QUAD_LARGE;
    TRY(list_outputs(ctx, in, &outputs));
    TRY(list_lines(ctx, references, &all));
    if (all.count > 0) TRY(find_base(ctx, references, &all));
    TRY(run_lines(ctx, &all));
    conclude(&all, certificates);
cleanup:
    free(outputs.items); /* their numbers are those of `in` */
    free(all.tensors);
    free(all.lines);
    return status;
}
