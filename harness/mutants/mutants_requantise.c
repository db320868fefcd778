/* Other codes and scales of h, where a kernel quantises it itself. */
#include "harness/mutants/mutants_requantise.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void path_of_branch(const assay_tensor_spec *h, const char *name, char path[ASSAY_PATH_SIZE])
{
    const char *ending = strstr(h->path, "moe_intermediate");
    const bool routed = ending != NULL;
    if (!routed) ending = strstr(h->path, "mlp_intermediate");
    snprintf(path, ASSAY_PATH_SIZE, "%.*s%s%s", (int)(ending - h->path), h->path, routed ? "moe_" : "", name);
}

const assay_tensor *assay_requantise_branch(const assay_tensor_set *made, const assay_tensor *h, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    path_of_branch(&h->spec, name, path);
    return assay_tensor_set_find(made, path);
}

assay_status assay_requantise_read(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                   const assay_hidden *hidden, assay_tensor_set *made)
{
    static const char *const BRANCHES[] = {"mlpwi_0", "mlpwi_1"};
    assay_status status = ASSAY_OK;
    const assay_tensor_spec *const specs[] = {hidden->h, hidden->codes, hidden->scale};
    for (int k = 0; k < 3; k++) TRY(assay_tensor_set_add(ctx, made, specs[k], NULL));
    for (int k = 0; k < 2; k++) {
        char path[ASSAY_PATH_SIZE];
        path_of_branch(hidden->h, BRANCHES[k], path);
        const assay_tensor_entry *entry = assay_tensor_list_find(&plan->list, path);
        if (entry != NULL) TRY(assay_tensor_set_add(ctx, made, &entry->spec, NULL));
    }
    const assay_sink out = assay_tensor_set_sink(made);
    TRY(assay_operation_run(ctx, plan->operation, plan->c, in, &out, NULL, 0));
    TRY(assay_tensor_set_require_complete(ctx, made));
cleanup:
    return status;
}

static int64_t blocks_of(const assay_hidden_mutation *m)
{
    return assay_tensor_width(m->scale);
}

/* Codes of h by the scales that are there. */
static void code_by_scale(const assay_hidden_mutation *m)
{
    const int64_t width = assay_tensor_width(m->h), blocks = blocks_of(m), columns = m->config->format->columns;
    for (int64_t i = 0; i < m->scale->count; i++) {
        const int64_t first = i % blocks * columns, at = i / blocks * width + first;
        const int64_t count = width - first < columns ? width - first : columns;
        assay_quantize_by(m->codes->values + at, m->h->values + at, count, m->scale->values[i], m->config);
    }
}

bool assay_requantise_before_activation(const assay_hidden_mutation *m)
{
    const int64_t width = assay_tensor_width(m->h), blocks = blocks_of(m), columns = m->config->format->columns;
    if (m->gate == NULL || m->up == NULL) return false;
    for (int64_t i = 0; i < m->scale->count; i++) {
        const int64_t first = i % blocks * columns, at = i / blocks * width + first;
        double amax = 0;
        for (int64_t j = 0; j < columns && first + j < width; j++)
            amax = fmax(amax, fabs(m->gate->values[at + j] * m->up->values[at + j]));
        m->scale->values[i] = assay_quantize_scale(amax, m->config);
    }
    code_by_scale(m);
    return true;
}

/* The largest number of the type that is no larger. */
bool assay_requantise_truncated(const assay_hidden_mutation *m)
{
    const int64_t width = assay_tensor_width(m->h), blocks = blocks_of(m), columns = m->config->format->columns;
    const double of_tensor = m->config->format->tensor_scale ? m->config->tensor_scale : 1;
    for (int64_t i = 0; i < m->h->count; i++) {
        const double scale = m->scale->values[i / width * blocks + i % width / columns] * of_tensor;
        double *code = &m->codes->values[i];
        uint8_t bits = 0;
        if (!(fabs(*code) * scale > fabs(m->h->values[i]))) continue;
        assay_dtype_encode(m->config->format->element, 1, code, &bits);
        bits--; /* the next number towards zero */
        assay_dtype_decode(m->config->format->element, 1, &bits, code);
    }
    return true;
}
