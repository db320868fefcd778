/* Gradients: central differences in binary128 along lines. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/certify_internal.h"
#include "oracle/quad/quad_internal.h"

/* L and the sum of the sizes of its terms. A cotangent that is no number stands on a row that belongs to nothing (or
 * else the gradient is no number either, which is found) and is left out; so is an output that is none (the lse of a
 * query that sees nothing), which depends on nothing. */
typedef struct weighted_sum {
    quad value, size;
} weighted_sum;

static assay_status sum_up(assay_context *ctx, const quad_tensors *in, const quad_tensors *out, weighted_sum *loss)
{
    assay_status status = ASSAY_OK;
    *loss = (weighted_sum){0};
    for (int i = 0; i < in->count; i++) {
        const quad_tensor *cotangent = &in->items[i];
        if (!quad_has_prefix(cotangent->path, "cotangents/")) continue;
        char path[ASSAY_PATH_SIZE];
        size_t length = strlen("cotangents/");
        memcpy(path, "outputs/", strlen("outputs/"));
        memcpy(path + strlen("outputs/"), cotangent->path + length, strlen(cotangent->path) - length + 1);
        const quad *output = NULL;
        int64_t count = assay_shape_count(&cotangent->shape);
        TRY(quad_read(ctx, out, path, count, &output));
        for (int64_t j = 0; j < count; j++) {
            if (!finiteq(cotangent->values[j]) || !finiteq(output[j])) continue;
            quad term = cotangent->values[j] * output[j];
            loss->value += term;
            loss->size += fabsq(term);
        }
    }
cleanup:
    return status;
}

static assay_status evaluate_loss(assay_context *ctx, const quad_operation *operation, const void *config,
                                  const quad_tensors *in, weighted_sum *loss)
{
    assay_status status = ASSAY_OK;
    quad_tensors out = {0};
    TRY(operation->evaluate(ctx, config, in, &out));
    TRY(sum_up(ctx, in, &out, loss));
cleanup:
    quad_tensors_free(&out);
    return status;
}

/* One gradient under test, and the tensor it belongs to. */
typedef struct gradient {
    const char *path;        /* of the gradient */
    const quad *values; /* of the gradient */
    const quad *origin;
    int64_t count; /* elements of the gradient, and of the tensor: the same but for directions */
    int64_t origin_count;
    bool directions;              /* its elements are derivatives along directions of signs */
    int tensor;                   /* its place in `in` */
    quad size;               /* root of the mean square of the tensor, 1 where it is 0 */
    quad magnitude;          /* of the gradient: its largest element */
    quad norm;               /* of the gradient */
    const quad *error_scale; /* of the gradient, or NULL */
} gradient;

/* A line along which a gradient is tested, and what was found. */
typedef struct probe {
    int gradient;
    int64_t index; /* the gradient's element, or -1: a direction of random signs that `seed` gives */
    uint64_t seed;
    bool kink;
    quad computed, derivative, error, scale, allowed;
} probe;

typedef struct probing {
    const quad_operation *operation;
    const void *config;
    const quad_tensors *in;
    const quad_budget *budget;
    weighted_sum base;
    gradient *gradients;
    int gradient_count;
    probe *probes;
    int64_t probe_count;
    int64_t results; /* numbers that one evaluation gives, at least */
} probing;

/* `in`, with the values of one tensor replaced by `values`; only those are its own. Starts zeroed. */
typedef struct moved_inputs {
    quad_tensors tensors;
    quad *values;
    signed char *signs; /* of the direction; NULL: of a coordinate, or of a random one */
} moved_inputs;

static void free_moved(moved_inputs *moved)
{
    free(moved->tensors.items);
    free(moved->values);
    free(moved->signs);
}

static assay_status alloc_moved(assay_context *ctx, const probing *all, const probe *p, moved_inputs *moved)
{
    assay_status status;
    char of[ASSAY_PATH_SIZE];
    void *items = NULL, *signs = NULL;
    const gradient *g = &all->gradients[p->gradient];
    TRY(quad_alloc(ctx, g->origin_count, &moved->values));
    if (g->directions) {
        TRY(assay_alloc(ctx, "a direction", g->origin_count, sizeof *moved->signs, &signs));
        moved->signs = signs;
        all->budget->direction(all->budget->signed_sums, g->path, p->index, of, moved->signs);
    }
    TRY(assay_alloc(ctx, "list of tensors", all->in->count, sizeof *all->in->items, &items));
    memcpy(items, all->in->items, (size_t)all->in->count * sizeof *all->in->items);
    moved->tensors = (quad_tensors){.items = items, .count = all->in->count};
    moved->tensors.items[g->tensor].values = moved->values;
cleanup:
    return status;
}

/* The values moved by `step` along the probe's line. Numbers that are none are 0 for their own coordinate, and stay
 * where they are otherwise. */
static void move(const gradient *g, const probe *p, quad step, const moved_inputs *moved)
{
    uint64_t seed = p->seed;
    quad *values = moved->values;
    memcpy(values, g->origin, (size_t)g->origin_count * sizeof *values);
    for (int64_t i = 0; moved->signs != NULL && i < g->origin_count; i++) {
        if (finiteq(g->origin[i])) values[i] += moved->signs[i] * step;
    }
    if (moved->signs != NULL) return;
    if (p->index >= 0) {
        values[p->index] = (finiteq(g->origin[p->index]) ? g->origin[p->index] : 0) + step;
        return;
    }
    for (int64_t i = 0; i < g->count; i++) {
        bool negative = quad_next_random(&seed) & 1;
        if (finiteq(g->origin[i])) values[i] += negative ? -step : step;
    }
}

/* The gradient under test along the same line. */
static quad along(const gradient *g, const probe *p)
{
    uint64_t seed = p->seed;
    quad sum = 0;
    if (p->index >= 0) return g->values[p->index];
    for (int64_t i = 0; i < g->count; i++) {
        bool negative = quad_next_random(&seed) & 1;
        if (finiteq(g->origin[i])) sum += negative ? -g->values[i] : g->values[i];
    }
    return sum;
}

/* One standard deviation of a correct float64 gradient along the same line. */
static quad error_scale_along(const gradient *g, const probe *p)
{
    quad variance = 0;
    for (int64_t i = 0; g->error_scale != NULL && i < g->count; i++) {
        const bool counts = p->index < 0 || p->index == i;
        if (counts && finiteq(g->error_scale[i])) variance += g->error_scale[i] * g->error_scale[i];
    }
    return sqrtq(variance);
}

/* A probe at work: the next step, what a difference over it is good for, and how it went with the step before. */
typedef struct measurement {
    probe *p;
    moved_inputs above, below;
    quad step, wider;
    bool first, done;
} measurement;

static assay_status start(assay_context *ctx, const probing *all, probe *p, measurement *m)
{
    assay_status status;
    const gradient *g = &all->gradients[p->gradient];
    quad size = g->size;
    *m = (measurement){.p = p, .first = true};
    if (p->index >= 0 && !g->directions && finiteq(g->origin[p->index])) size = fmaxq(size, fabsq(g->origin[p->index]));
    m->step = ldexpq(size, -32);
    TRY(alloc_moved(ctx, all, p, &m->above));
    TRY(alloc_moved(ctx, all, p, &m->below));
    move(g, p, m->step, &m->above);
    move(g, p, -m->step, &m->below);
cleanup:
    return status;
}

static void end(measurement *m)
{
    free_moved(&m->above);
    free_moved(&m->below);
}

/* The step shrinks while the two one-sided differences disagree: with a smooth line their distance shrinks along,
 * however much it is curved; with a kink it stays, or the rounding of binary128 is reached first. */
static void judge(const probing *all, measurement *m, quad above, quad below)
{
    const quad small = 1e-7;
    probe *p = m->p;
    const gradient *g = &all->gradients[p->gradient];
    const quad derivative = (above - below) / (2 * m->step);
    const quad noise = ldexpq(all->base.size, -100) / m->step; /* some thousand roundings of L */
    const quad jump = fabsq(above - 2 * all->base.value + below) / m->step;
    p->scale = fmaxq(p->index >= 0 ? g->magnitude : g->norm, fabsq(derivative));
    m->done = !(jump > small * p->scale + noise);
    if (m->done) {
        p->computed = along(g, p);
        p->derivative = derivative;
        p->error = fabsq(p->computed - derivative);
        if (p->error <= noise) p->error = 0;
        p->allowed = fmaxq(QUAD_ALLOWED_RELATIVE * p->scale, QUAD_ALLOWED_SCALES * error_scale_along(g, p));
        return;
    }
    p->kink = (!m->first && jump > m->wider / 4 + noise) || 16 * noise > QUAD_ALLOWED_RELATIVE * p->scale;
    m->done = p->kink;
    m->first = false;
    m->wider = jump;
    m->step /= 16;
    move(g, p, m->step, &m->above);
    move(g, p, -m->step, &m->below);
}

static void advance(const probing *all, const probe *p)
{
    const quad_budget *budget = all->budget;
    if (budget->advance != NULL) budget->advance(budget->self, all->gradients[p->gradient].path);
}

static assay_status run_probe(assay_context *ctx, const probing *all, probe *p)
{
    assay_status status;
    measurement m;
    TRY(start(ctx, all, p, &m));
    while (!m.done) {
        weighted_sum above, below;
        TRY(evaluate_loss(ctx, all->operation, all->config, &m.above.tensors, &above));
        TRY(evaluate_loss(ctx, all->operation, all->config, &m.below.tensors, &below));
        judge(all, &m, above.value, below.value);
    }
cleanup:
    end(&m);
    return status;
}

/* Every probe by itself, so that the number of threads changes nothing; of several failures the first one counts. */
static assay_status run_probes(assay_context *ctx, const probing *all)
{
    assay_status first = ASSAY_OK;
    int64_t failed = all->probe_count;
#pragma omp parallel for num_threads(ctx->threads) schedule(dynamic)
    for (int64_t i = 0; i < all->probe_count; i++) {
        assay_context own = *ctx;
        own.threads = 1;
        assay_status status = run_probe(&own, all, &all->probes[i]);
#pragma omp critical(quad_probe_is_done)
        {
            if (status != ASSAY_OK && i < failed) {
                failed = i;
                first = status;
                memcpy(ctx->message, own.message, sizeof ctx->message);
            }
            advance(all, &all->probes[i]);
        }
    }
    return first;
}

/* One step of the measurements that are not done: their inputs above and below, after those that nothing is moved of,
 * whose rows the others mostly share. */
static assay_status step_together(assay_context *ctx, probing *all, measurement *measurements, int64_t count)
{
    assay_status status;
    const int64_t most = 2 * count + 1;
    quad_tensors *in = calloc((size_t)most, sizeof *in), *out = calloc((size_t)most, sizeof *out);
    int evaluated = 0;
    if (in == NULL || out == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a list of inputs"));
    in[evaluated++] = *all->in;
    for (int64_t i = 0; i < count; i++) {
        if (measurements[i].done) continue;
        in[evaluated++] = measurements[i].above.tensors;
        in[evaluated++] = measurements[i].below.tensors;
    }
    TRY(all->operation->evaluate_many(ctx, all->config, evaluated, in, out));
    TRY(sum_up(ctx, &in[0], &out[0], &all->base));
    for (int64_t i = 0, at = 1; i < count; i++) {
        weighted_sum above, below;
        if (measurements[i].done) continue;
        TRY(sum_up(ctx, &in[at], &out[at], &above));
        TRY(sum_up(ctx, &in[at + 1], &out[at + 1], &below));
        at += 2;
        judge(all, &measurements[i], above.value, below.value);
        if (measurements[i].done) advance(all, measurements[i].p);
    }
cleanup:
    for (int64_t i = 0; out != NULL && i < most; i++) quad_tensors_free(&out[i]);
    free(in);
    free(out);
    return status;
}

static assay_status run_together(assay_context *ctx, probing *all, probe *probes, int64_t count)
{
    assay_status status = ASSAY_OK;
    int64_t done = 0, started = 0;
    measurement *measurements = calloc((size_t)count, sizeof *measurements);
    if (measurements == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a list of probes");
    for (; started < count; started++) TRY(start(ctx, all, &probes[started], &measurements[started]));
    while (done < count) {
        TRY(step_together(ctx, all, measurements, count));
        done = 0;
        for (int64_t i = 0; i < count; i++) done += measurements[i].done;
    }
cleanup:
    for (int64_t i = 0; i < count; i++) end(&measurements[i]);
    free(measurements);
    return status;
}

/* What a probe's inputs and results take, both sides. */
static int64_t bytes_of(const probing *all, const probe *p)
{
    return 2 * (int64_t)sizeof(quad) * (all->gradients[p->gradient].count + all->results);
}

static assay_status run_probes_together(assay_context *ctx, probing *all)
{
    for (int64_t first = 0, count; first < all->probe_count; first += count) {
        int64_t bytes = bytes_of(all, &all->probes[first]);
        for (count = 1; first + count < all->probe_count; count++) {
            bytes += bytes_of(all, &all->probes[first + count]);
            if (bytes > QUAD_TOGETHER_BYTES) break;
        }
        const assay_status status = run_together(ctx, all, &all->probes[first], count);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

/* By sizes alone. Small problems do better with a thread for each probe. */
static bool are_large(const quad_tensors *in)
{
    int64_t count = 0;
    for (int i = 0; i < in->count; i++) count += assay_shape_count(&in->items[i].shape);
    return count >= QUAD_LARGE;
}

static void measure_gradient(gradient *g)
{
    quad squares = 0;
    int64_t finite = 0;
    g->magnitude = quad_largest(g->count, g->values);
    for (int64_t i = 0; i < g->count; i++) {
        g->norm += g->values[i] * g->values[i];
    }
    for (int64_t i = 0; i < g->origin_count; i++) {
        if (!finiteq(g->origin[i])) continue;
        squares += g->origin[i] * g->origin[i];
        finite++;
    }
    g->norm = sqrtq(g->norm);
    g->size = squares > 0 ? sqrtq(squares / finite) : 1;
}

/* The element of the gradient that is no number, or else the largest. */
static int64_t foremost(const gradient *g)
{
    int64_t index = 0;
    for (int64_t i = 0; i < g->count; i++) {
        if (!finiteq(g->values[i])) return i;
        if (fabsq(g->values[i]) > fabsq(g->values[index])) index = i;
    }
    return index;
}

int64_t quad_probe_count(const quad_budget *budget, int64_t elements)
{
    if (elements == 0) return 0;
    return (elements < budget->coordinates ? elements : budget->coordinates) + budget->directions;
}

static void choose_probes(const gradient *g, int number, const quad_budget *budget, probe *probes)
{
    uint64_t random = budget->seed;
    const int64_t count = quad_probe_count(budget, g->count), coordinates = count - budget->directions;
    for (int64_t i = 0; i < count; i++) {
        probes[i] = (probe){.gradient = number, .index = -1};
        if (i >= coordinates && !g->directions) {
            probes[i].seed = quad_next_random(&random);
        } else if (coordinates == g->count && i < coordinates) {
            probes[i].index = i;
        } else {
            probes[i].index = i == 0 ? foremost(g) : (int64_t)(quad_next_random(&random) % (uint64_t)g->count);
        }
    }
}

/* The gradients of `computed`, and room for their probes. */
static assay_status collect(assay_context *ctx, probing *all, const quad_tensors *computed)
{
    assay_status status;
    void *gradients = NULL, *probes = NULL;
    TRY(assay_alloc(ctx, "list of gradients", computed->count, sizeof *all->gradients, &gradients));
    all->gradients = gradients;
    for (int i = 0; i < computed->count; i++) {
        const quad_tensor *tensor = &computed->items[i];
        if (!quad_has_prefix(tensor->path, "gradients/")) continue;
        const char *path = tensor->path + strlen("gradients/");
        char of[ASSAY_PATH_SIZE];
        gradient *g = &all->gradients[all->gradient_count++];
        *g = (gradient){.path = tensor->path, .values = tensor->values, .count = assay_shape_count(&tensor->shape)};
        if (tensor->values == NULL) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "'%s' holds indices", tensor->path);
            goto cleanup;
        }
        g->directions =
            all->budget->direction != NULL && all->budget->direction(all->budget->signed_sums, g->path, 0, of, NULL);
        if (g->directions) path = of;
        g->tensor =
            quad_tensors_find(all->in, path) == NULL ? -1 : (int)(quad_tensors_find(all->in, path) - all->in->items);
        g->origin_count =
            g->directions && g->tensor >= 0 ? assay_shape_count(&all->in->items[g->tensor].shape) : g->count;
        TRY(quad_read(ctx, all->in, path, g->origin_count, &g->origin));
        TRY(quad_find_error_scale(ctx, computed, tensor, &g->error_scale));
        measure_gradient(g);
        all->probe_count += quad_probe_count(all->budget, g->count);
    }
    TRY(assay_alloc(ctx, "list of probes", all->probe_count, sizeof *all->probes, &probes));
    all->probes = probes;
    for (int64_t i = 0, number = 0; number < all->gradient_count; number++) {
        const gradient *g = &all->gradients[number];
        choose_probes(g, (int)number, all->budget, all->probes + i);
        i += quad_probe_count(all->budget, g->count);
    }
cleanup:
    return status;
}

/* What the probes of one gradient have found. */
static assay_status conclude(assay_context *ctx, const probing *all, int number, quad_certificates *certificates)
{
    quad_certificate *certificate = NULL;
    assay_status status = quad_add_certificate(ctx, certificates, all->gradients[number].path, &certificate);
    if (status != ASSAY_OK) return status;
    for (int64_t i = 0; i < all->probe_count; i++) {
        const probe *p = &all->probes[i];
        if (p->gradient != number) continue;
        if (p->kink) {
            certificate->kinks++;
            continue;
        }
        quad_note(certificate, &(quad_comparison){.index = p->index,
                                                  .computed = p->computed,
                                                  .reference = p->derivative,
                                                  .error = p->error,
                                                  .scale = p->scale,
                                                  .allowed = p->allowed});
    }
    return ASSAY_OK;
}

assay_status quad_certify_gradients(assay_context *ctx, const quad_operation *operation, const void *config,
                                    const quad_tensors *in, const quad_tensors *computed, const quad_budget *budget,
                                    quad_certificates *certificates)
{
    assay_status status;
    probing all = {.operation = operation, .config = config, .in = in, .budget = budget};
    const bool together = operation->evaluate_many != NULL && are_large(in);
    if (operation->gives_gradients != NULL && operation->gives_gradients(config)) return ASSAY_OK;
    for (int i = 0; i < in->count; i++) {
        if (quad_has_prefix(in->items[i].path, "cotangents/")) all.results += assay_shape_count(&in->items[i].shape);
    }
    if (!together) TRY(evaluate_loss(ctx, operation, config, in, &all.base)); /* else the first of each pass */
    TRY(collect(ctx, &all, computed));
    TRY(together ? run_probes_together(ctx, &all) : run_probes(ctx, &all));
    for (int i = 0; i < all.gradient_count; i++) TRY(conclude(ctx, &all, i, certificates));
cleanup:
    free(all.gradients);
    free(all.probes);
    return status;
}
