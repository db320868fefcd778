/* Mutants by which keys a query sees. */
#include <math.h>
#include <string.h>

#include "harness/mutants_tensors.h"

/* Segment 0 is padding where padding is masked. */
static bool is_blind(const assay_mutation *m, const assay_kept *segments, int64_t token)
{
    return m->c->config.mask_padding && segments != NULL && segments->indices[token] == 0;
}

/* Rows of padded tokens; a token has as many numbers as the axes after B and S. */
static bool blind_rows_to_nan(const assay_mutation *m, const char *path)
{
    assay_kept *tensor = assay_results_find(m->tensors, path);
    const assay_kept *segments = assay_results_find(m->tensors, "inputs/segment_ids");
    bool changed = false;
    if (tensor == NULL) return false;
    const int64_t size = assay_axes_product(&tensor->spec->shape, 2, tensor->spec->shape.rank);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (!is_blind(m, segments, i / size)) continue;
        tensor->values[i] = (double)NAN;
        changed = true;
    }
    return changed;
}

/* What was divided by a sum of 0. Of what follows only the product with the output's weights sees them: masked queries
 * and keys have no other gradient. */
bool assay_mutant_nan_blind_rows(const assay_mutation *m)
{
    if (strcmp(m->c->op, "attention") == 0) return blind_rows_to_nan(m, "outputs/attention_out");
    const bool changed = blind_rows_to_nan(m, "outputs/y");
    assay_kept *weight = assay_results_find(m->tensors, "gradients/weights/out/kernel");
    blind_rows_to_nan(m, "checkpoints/attention_out");
    blind_rows_to_nan(m, "checkpoints/out_proj");
    if (changed && weight != NULL) assay_fill_values(weight, 0, (double)NAN);
    return changed;
}

/* Attention of one head of one batch row. A row of a tensor [B,S,N,D] is that of a token. */
typedef struct next_key {
    const assay_mutation *m;
    const assay_kept *query, *key, *value, *segments, *d_out, *d_lse;
    assay_kept *out, *lse, *d_query, *d_key, *d_value;
    int64_t batch, head, heads, sequence;
} next_key;

static double *row_of(const next_key *a, const assay_kept *tensor, int64_t token)
{
    const int64_t row = (a->batch * a->sequence + token) * a->heads + a->head;
    return tensor->values + row * assay_kept_width(tensor);
}

static double *lse_of(const next_key *a, const assay_kept *lse, int64_t i)
{
    return lse->values + (a->batch * a->heads + a->head) * a->sequence + i;
}

static bool sees(const next_key *a, int64_t i, int64_t j)
{
    const int64_t first = a->batch * a->sequence;
    if (j > i + 1 || is_blind(a->m, a->segments, first + i)) return false;
    return a->segments == NULL || a->segments->indices[first + i] == a->segments->indices[first + j];
}

static double dot(const double *x, const double *y, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++) sum = fma(x[i], y[i], sum);
    return sum;
}

static double score(const next_key *a, int64_t i, int64_t j)
{
    return dot(row_of(a, a->query, i), row_of(a, a->key, j), assay_kept_width(a->key));
}

static void add_row(double factor, const double *x, double *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) y[i] = fma(factor, x[i], y[i]);
}

static void forward(const next_key *a, int64_t i)
{
    double largest = -INFINITY, sum = 0.0, *out = row_of(a, a->out, i);
    const int64_t width = assay_kept_width(a->value);
    for (int64_t j = 0; j < a->sequence; j++) {
        if (sees(a, i, j)) largest = fmax(largest, score(a, i, j));
    }
    if (!isfinite(largest)) return; /* padding: as it was */
    for (int64_t c = 0; c < width; c++) out[c] = 0.0;
    for (int64_t j = 0; j < a->sequence; j++) {
        if (sees(a, i, j)) sum += exp(score(a, i, j) - largest);
    }
    *lse_of(a, a->lse, i) = largest + log(sum);
    for (int64_t j = 0; j < a->sequence; j++) {
        if (sees(a, i, j)) add_row(exp(score(a, i, j) - largest) / sum, row_of(a, a->value, j), out, width);
    }
}

static void backward(const next_key *a, int64_t i)
{
    const int64_t qk_width = assay_kept_width(a->key), v_width = assay_kept_width(a->value);
    const double *d_out = row_of(a, a->d_out, i);
    double through = dot(d_out, row_of(a, a->out, i), v_width);
    if (a->d_lse != NULL) through -= *lse_of(a, a->d_lse, i);
    for (int64_t j = 0; j < a->sequence; j++) {
        if (!sees(a, i, j)) continue;
        const double p = exp(score(a, i, j) - *lse_of(a, a->lse, i));
        const double ds = p * (dot(d_out, row_of(a, a->value, j), v_width) - through);
        add_row(ds, row_of(a, a->key, j), row_of(a, a->d_query, i), qk_width);
        add_row(ds, row_of(a, a->query, i), row_of(a, a->d_key, j), qk_width);
        add_row(p, d_out, row_of(a, a->d_value, j), v_width);
    }
}

bool assay_mutant_see_next_key(const assay_mutation *m)
{
    next_key a = {.m = m,
                  .query = assay_results_find(m->tensors, "inputs/query"),
                  .key = assay_results_find(m->tensors, "inputs/key"),
                  .value = assay_results_find(m->tensors, "inputs/value"),
                  .segments = assay_results_find(m->tensors, "inputs/segment_ids"),
                  .d_out = assay_results_find(m->tensors, "cotangents/attention_out"),
                  .d_lse = assay_results_find(m->tensors, "cotangents/lse"),
                  .out = assay_results_find(m->tensors, "outputs/attention_out"),
                  .lse = assay_results_find(m->tensors, "outputs/lse"),
                  .d_query = assay_results_find(m->tensors, "gradients/inputs/query"),
                  .d_key = assay_results_find(m->tensors, "gradients/inputs/key"),
                  .d_value = assay_results_find(m->tensors, "gradients/inputs/value")};
    const bool gradients = a.d_out != NULL && a.d_query != NULL && a.d_key != NULL && a.d_value != NULL;
    a.sequence = a.query->spec->shape.dims[1], a.heads = a.query->spec->shape.dims[2];
    if (gradients) {
        assay_fill_values(a.d_query, 0, 0.0);
        assay_fill_values(a.d_key, 0, 0.0);
        assay_fill_values(a.d_value, 0, 0.0);
    }
    for (int64_t i = 0; i < a.query->spec->shape.dims[0] * a.heads; i++) {
        a.batch = i / a.heads, a.head = i % a.heads;
        for (int64_t row = 0; row < a.sequence; row++) {
            forward(&a, row);
            if (gradients) backward(&a, row);
        }
    }
    return a.sequence > 1;
}
