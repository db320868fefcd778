/* Other codes and scales of h, where a kernel quantises it itself. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_support.h"
#include "harness/scales/hidden.h"
#include "oracle/base/memory.h"

static void path_of_branch(const assay_tensor_spec *h, const char *name, char path[ASSAY_PATH_SIZE])
{
    const char *ending = strstr(h->path, "moe_intermediate");
    const bool routed = ending != NULL;
    if (!routed) ending = strstr(h->path, "mlp_intermediate");
    if (ending == NULL) ending = h->path; /* of a program: beside that there is nothing of the name */
    snprintf(path, ASSAY_PATH_SIZE, "%.*s%s%s", (int)(ending - h->path), h->path, routed ? "moe_" : "", name);
}

/* "mlpwi_0" or "mlpwi_1" beside an h of that set; NULL: there is none. */
static const assay_tensor *branch_of(const assay_tensor_set *made, const assay_tensor *h, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    path_of_branch(&h->spec, name, path);
    return assay_tensor_set_find(made, path);
}

/* h of a gated MLP, its codes and scales, and where they are apart gate and up. */
static assay_status read_hidden(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                const assay_hidden *hidden, assay_tensor_set *made)
{
    static const char *const BRANCHES[] = {"mlpwi_0", "mlpwi_1"};
    const assay_tensor_spec *const specs[] = {hidden->h, hidden->codes, hidden->scale};
    for (int k = 0; k < 3; k++) MUST(assay_tensor_set_add(ctx, made, specs[k], NULL));
    for (int k = 0; k < 2; k++) {
        char path[ASSAY_PATH_SIZE];
        path_of_branch(hidden->h, BRANCHES[k], path);
        const assay_tensor_entry *entry = assay_tensor_list_find(&plan->list, path);
        if (entry != NULL) MUST(assay_tensor_set_add(ctx, made, &entry->spec, NULL));
    }
    const assay_sink out = assay_tensor_set_sink(made);
    MUST(assay_operation_run(ctx, plan->operation, plan->c, in, &out));
    return assay_tensor_set_require_complete(ctx, made);
}

static int64_t blocks_of(const assay_hidden_mutation *m)
{
    return assay_tensor_width(m->scale);
}

/* Codes of h by the scales that are there. */
static void code_by_scale(const assay_hidden_mutation *m)
{
    const int64_t width = assay_tensor_width(m->h), blocks = blocks_of(m), columns = m->config->format->columns,
                  rows = m->config->format->rows;
    for (int64_t row = 0; row < m->h->count / width; row++) {
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t first = block * columns, at = row * width + first;
            const int64_t count = width - first < columns ? width - first : columns;
            const double scale = m->scale->values[row / rows * blocks + block];
            assay_quantize_by(m->codes->values + at, m->h->values + at, count, scale, m->config);
        }
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
        const int64_t down = i / width / m->config->format->rows;
        const double scale = m->scale->values[down * blocks + i % width / columns] * of_tensor;
        double *code = &m->codes->values[i];
        uint8_t bits = 0;
        if (!(fabs(*code) * scale > fabs(m->h->values[i]))) continue;
        assay_dtype_encode(m->config->format->element, 1, code, &bits);
        bits--; /* the next number towards zero */
        assay_dtype_decode(m->config->format->element, 1, &bits, code);
    }
    return true;
}

assay_status assay_mutant_stage(assay_context *ctx, const assay_tensor *made, assay_tensor_set *staged)
{
    assay_tensor_spec spec = made->spec;
    assay_tensor *to = NULL;
    assay_staged_path(made->spec.path, spec.path);
    MUST(assay_tensor_set_add(ctx, staged, &spec, &to));
    memcpy(to->values, made->values, (size_t)to->count * sizeof *to->values);
    to->written = to->count;
    return ASSAY_OK;
}

static assay_status change_codes(assay_context *ctx, const assay_mutant *mutant, const assay_case *c,
                                 const assay_hidden_mutation *m, bool *applies)
{
    assay_status status = ASSAY_OK;
    assay_mutation of_scales = {.c = c};
    if (mutant->hidden_scales.edit != NULL) {
        TRY(assay_alloc_f64(ctx, "copy of a tensor", m->scale->count, &of_scales.scratch));
        *applies |= assay_change_tensor(&of_scales, &mutant->hidden_scales, m->scale);
    }
    if (mutant->requantise != NULL) *applies |= mutant->requantise(m);
cleanup:
    free(of_scales.scratch);
    return status;
}

assay_status assay_mutant_requantise(assay_context *ctx, const assay_mutant *mutant, const assay_plan *plan,
                                     const assay_source *in, assay_tensor_set *staged, bool *applies)
{
    assay_hidden hidden[ASSAY_MOST_HIDDEN];
    OWNED_BY(assay_tensor_set_free) assay_tensor_set made = {0};
    assay_overlay given = {assay_tensor_set_source(staged), *in};
    const assay_source source = assay_overlay_source(&given);
    const int count = assay_hidden_list(&plan->list, hidden);
    *applies = false;
    for (int i = 0; i < count; i++) {
        assay_quantize_config config;
        assay_tensor_set_free(&made);
        MUST(read_hidden(ctx, plan, &source, &hidden[i], &made));
        const assay_tensor *h = assay_tensor_set_find(&made, hidden[i].h->path);
        MUST(assay_hidden_rules(ctx, plan->c, &hidden[i], &config));
        const assay_hidden_mutation m = {.config = &config,
                                         .h = h,
                                         .gate = branch_of(&made, h, "mlpwi_0"),
                                         .up = branch_of(&made, h, "mlpwi_1"),
                                         .codes = assay_tensor_set_find(&made, hidden[i].codes->path),
                                         .scale = assay_tensor_set_find(&made, hidden[i].scale->path)};
        MUST(change_codes(ctx, mutant, plan->c, &m, applies));
        MUST(assay_mutant_stage(ctx, m.codes, staged));
        MUST(assay_mutant_stage(ctx, m.scale, staged));
    }
    return ASSAY_OK;
}
