/* Gradients: central differences in binary128 along lines. */
#include <quadmath.h>
#include <string.h>

#include "oracle/spec/certify_internal.h"
#include "oracle/spec/spec_internal.h"

/* L and the sum of the sizes of its terms. A cotangent that is no number stands on a row that belongs to nothing (or
 * else the gradient is no number either, which is found) and is left out. */
typedef struct weighted_sum {
    spec_quad value, size;
} weighted_sum;

static assay_status evaluate_loss(assay_context *ctx, const spec_operation *operation, const void *config,
                                  const spec_tensors *in, weighted_sum *loss)
{
    assay_status status = ASSAY_OK;
    spec_tensors out = {0};
    *loss = (weighted_sum){0};
    TRY(operation->evaluate(ctx, config, in, &out));
    for (int i = 0; i < in->count; i++) {
        const spec_tensor *cotangent = &in->items[i];
        if (!spec_has_prefix(cotangent->path, "cotangents/")) continue;
        char path[ASSAY_PATH_SIZE];
        size_t length = strlen("cotangents/");
        memcpy(path, "outputs/", strlen("outputs/"));
        memcpy(path + strlen("outputs/"), cotangent->path + length, strlen(cotangent->path) - length + 1);
        const spec_quad *output = NULL;
        int64_t count = assay_shape_count(&cotangent->shape);
        TRY(spec_read(ctx, &out, path, count, &output));
        for (int64_t j = 0; j < count; j++) {
            if (!finiteq(cotangent->values[j])) continue;
            spec_quad term = cotangent->values[j] * output[j];
            loss->value += term;
            loss->size += fabsq(term);
        }
    }
cleanup:
    spec_tensors_free(&out);
    return status;
}

/* One gradient under test: the tensor it belongs to, which is moved in a copy. */
typedef struct probing {
    const spec_operation *operation;
    const void *config;
    spec_tensors moved; /* `in` with the tensor's values replaced by `values`; only those are its own */
    spec_quad *values;
    const spec_quad *origin, *gradient;
    int64_t count;
    spec_quad size;      /* root of the mean square of the tensor, 1 where it is 0 */
    spec_quad magnitude; /* of the gradient: its largest element */
    spec_quad norm;      /* of the gradient */
    weighted_sum base;
} probing;

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15U; /* splitmix64 (Steele, Lea and Flood 2014) */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
}

/* The values moved by `step` along coordinate `index`, or along the direction of random signs that `seed` gives
 * (index -1). Numbers that are none are 0 for their own coordinate, and stay where they are otherwise. */
static void move(probing *p, int64_t index, uint64_t seed, spec_quad step)
{
    memcpy(p->values, p->origin, (size_t)p->count * sizeof *p->values);
    if (index >= 0) {
        p->values[index] = (finiteq(p->origin[index]) ? p->origin[index] : 0) + step;
        return;
    }
    for (int64_t i = 0; i < p->count; i++) {
        bool negative = next_random(&seed) & 1;
        if (finiteq(p->origin[i])) p->values[i] += negative ? -step : step;
    }
}

/* The gradient under test along the same line. */
static spec_quad along(const probing *p, int64_t index, uint64_t seed)
{
    if (index >= 0) return p->gradient[index];
    spec_quad sum = 0;
    for (int64_t i = 0; i < p->count; i++) {
        bool negative = next_random(&seed) & 1;
        if (finiteq(p->origin[i])) sum += negative ? -p->gradient[i] : p->gradient[i];
    }
    return sum;
}

static assay_status difference(assay_context *ctx, probing *p, int64_t index, uint64_t seed, spec_quad step,
                               spec_quad *derivative, spec_quad *jump)
{
    assay_status status = ASSAY_OK;
    weighted_sum above, below;
    move(p, index, seed, step);
    TRY(evaluate_loss(ctx, p->operation, p->config, &p->moved, &above));
    move(p, index, seed, -step);
    TRY(evaluate_loss(ctx, p->operation, p->config, &p->moved, &below));
    *derivative = (above.value - below.value) / (2 * step);
    *jump = fabsq(above.value - 2 * p->base.value + below.value) / step;
cleanup:
    return status;
}

static assay_status probe(assay_context *ctx, probing *p, int64_t index, uint64_t seed, spec_certificate *certificate)
{
    const spec_quad small = 1e-7;
    spec_quad size = p->size, derivative = 0, jump = 0, closer_jump = 0;
    if (index >= 0 && finiteq(p->origin[index]) && fabsq(p->origin[index]) > size) size = fabsq(p->origin[index]);
    spec_quad step = ldexpq(size, -32);
    spec_quad noise = ldexpq(p->base.size, -100) / step; /* some thousand roundings of L */
    assay_status status = difference(ctx, p, index, seed, step, &derivative, &jump);
    if (status != ASSAY_OK) return status;
    spec_quad scale = index >= 0 ? p->magnitude : p->norm;
    if (fabsq(derivative) > scale) scale = fabsq(derivative);
    if (jump > small * scale + noise) { /* a kink, or much curvature, which shrinks with the step */
        noise *= 16;
        status = difference(ctx, p, index, seed, step / 16, &derivative, &closer_jump);
        if (status != ASSAY_OK) return status;
        if (closer_jump > jump / 4 + noise) {
            certificate->kinks++;
            return ASSAY_OK;
        }
    }
    spec_quad computed = along(p, index, seed), error = fabsq(computed - derivative);
    spec_note(certificate, index, computed, derivative, error <= noise ? 0 : error, scale);
    return ASSAY_OK;
}

static void measure(probing *p)
{
    spec_quad squares = 0;
    int64_t finite = 0;
    p->magnitude = spec_largest(p->count, p->gradient);
    for (int64_t i = 0; i < p->count; i++) {
        p->norm += p->gradient[i] * p->gradient[i];
        if (!finiteq(p->origin[i])) continue;
        squares += p->origin[i] * p->origin[i];
        finite++;
    }
    p->norm = sqrtq(p->norm);
    p->size = squares > 0 ? sqrtq(squares / finite) : 1;
}

/* The element of the gradient that is no number, or else the largest. */
static int64_t foremost(const probing *p)
{
    int64_t index = 0;
    for (int64_t i = 0; i < p->count; i++) {
        if (!finiteq(p->gradient[i])) return i;
        if (fabsq(p->gradient[i]) > fabsq(p->gradient[index])) index = i;
    }
    return index;
}

static assay_status probe_all(assay_context *ctx, probing *p, const spec_budget *budget, spec_certificate *certificate)
{
    assay_status status = ASSAY_OK;
    uint64_t random = budget->seed;
    bool all = p->count <= budget->coordinates;
    for (int64_t i = 0; i < (all ? p->count : budget->coordinates); i++) {
        int64_t index = all ? i : i == 0 ? foremost(p) : (int64_t)(next_random(&random) % (uint64_t)p->count);
        TRY(probe(ctx, p, index, 0, certificate));
    }
    for (int64_t i = 0; p->count > 0 && i < budget->directions; i++) {
        TRY(probe(ctx, p, -1, next_random(&random), certificate));
    }
cleanup:
    return status;
}

static assay_status certify_gradient(assay_context *ctx, probing *p, const spec_tensors *in,
                                     const spec_tensor *computed, const spec_budget *budget,
                                     spec_certificates *certificates)
{
    assay_status status = ASSAY_OK;
    const char *path = computed->path + strlen("gradients/");
    void *items = NULL;
    p->count = assay_shape_count(&computed->shape);
    p->gradient = computed->values;
    spec_certificate *certificate = NULL;
    if (p->gradient == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' holds indices", computed->path);
    TRY(spec_read(ctx, in, path, p->count, &p->origin));
    TRY(spec_alloc(ctx, p->count, &p->values));
    TRY(assay_alloc(ctx, "list of tensors", in->count, sizeof *in->items, &items));
    memcpy(items, in->items, (size_t)in->count * sizeof *in->items);
    p->moved = (spec_tensors){.items = items, .count = in->count};
    p->moved.items[spec_tensors_find(in, path) - in->items].values = p->values;
    measure(p);
    TRY(spec_add_certificate(ctx, certificates, computed->path, &certificate));
    TRY(probe_all(ctx, p, budget, certificate));
cleanup:
    free(items);
    free(p->values);
    p->values = NULL;
    return status;
}

assay_status spec_certify_gradients(assay_context *ctx, const spec_operation *operation, const void *config,
                                    const spec_tensors *in, const spec_tensors *computed, const spec_budget *budget,
                                    spec_certificates *certificates)
{
    weighted_sum base;
    assay_status status = evaluate_loss(ctx, operation, config, in, &base);
    if (status != ASSAY_OK) return status;
    for (int i = 0; i < computed->count; i++) {
        if (!spec_has_prefix(computed->items[i].path, "gradients/")) continue;
        probing p = {.operation = operation, .config = config, .base = base};
        status = certify_gradient(ctx, &p, in, &computed->items[i], budget, certificates);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}
