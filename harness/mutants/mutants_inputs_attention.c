/* Mutants by changed inputs and weights of norms, positions and attention. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

bool assay_mutant_unit_kv_norm(const assay_mutation *m)
{
    return assay_change_given(m, "kv_norm/scale", assay_values_to_one);
}

bool assay_mutant_unit_q_norm(const assay_mutation *m)
{
    return assay_change_given(m, "q_norm/scale", assay_values_to_one);
}

bool assay_mutant_unit_norms(const assay_mutation *m)
{
    const bool all = assay_change_given(m, "scale", assay_values_to_one);
    return assay_change_given(m, "per_expert_scale", assay_values_to_one) || all;
}

/* Positions are changed where they stay in what the operation accepts. */
static bool change_positions(const assay_mutation *m, int kind)
{
    assay_kept *positions = assay_results_find(m->tensors, "inputs/positions");
    bool changed = false;
    for (int64_t i = 0; positions != NULL && i < positions->count; i++) {
        int32_t *p = &positions->indices[i], old = *p;
        if (kind == 0) *p = 0;
        if (kind == 1 && old + 1 < m->c->config.max_position_embeddings) *p = old + 1;
        if (kind == 2) *p = (int32_t)assay_dtype_round(ASSAY_BFLOAT16, old, false);
        if (*p >= m->c->config.max_position_embeddings) *p = old;
        changed |= *p != old;
    }
    return changed;
}

bool assay_mutant_zero_positions(const assay_mutation *m)
{
    return change_positions(m, 0);
}

bool assay_mutant_shift_positions(const assay_mutation *m)
{
    return change_positions(m, 1);
}

bool assay_mutant_round_positions(const assay_mutation *m)
{
    return change_positions(m, 2);
}

bool assay_mutant_one_segment(const assay_mutation *m)
{
    assay_kept *ids = assay_results_find(m->tensors, "inputs/segment_ids");
    bool changed = false;
    for (int64_t i = 0; ids != NULL && i < ids->count; i++) {
        changed |= ids->indices[i] > 1;
        if (ids->indices[i] > 1) ids->indices[i] = 1; /* padding stays padding */
    }
    return changed;
}

/* Each row takes that of the row before it; the first stays. */
static bool lag_rows(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = assay_kept_width(tensor);
    if (tensor->spec->shape.rank < 2 || tensor->count < 2 * width) return false;
    memmove(tensor->values + width, tensor->values, (size_t)(tensor->count - width) * sizeof *tensor->values);
    return true;
}

bool assay_mutant_previous_token(const assay_mutation *m)
{
    return assay_change_given(m, "x", lag_rows);
}

/* Keys and values lag by one token: the diagonal is where the token before should be. */
static bool lag_tokens(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const int64_t size = assay_axes_product(shape, 2, shape->rank), length = shape->dims[1] * size;
    for (int64_t b = 0; b < shape->dims[0]; b++) {
        double *rows = tensor->values + b * length;
        memmove(rows + size, rows, (size_t)(length - size) * sizeof *rows);
    }
    return shape->dims[1] > 1;
}

bool assay_mutant_shift_keys(const assay_mutation *m)
{
    const bool key = assay_change_given(m, "key", lag_tokens);
    return assay_change_given(m, "value", lag_tokens) && key;
}

static bool times_root_of_width(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const double factor = sqrt((double)assay_kept_width(tensor));
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

bool assay_mutant_scale_query(const assay_mutation *m)
{
    return assay_change_given(m, "query", times_root_of_width) ||
           assay_change_given(m, "wq_b/kernel", times_root_of_width);
}

/* 1 / sqrt(D / N) instead of 1 / sqrt(Dq), the width of what the weight makes. */
static bool times_hidden(const assay_mutation *m, assay_kept *tensor)
{
    const int axis = assay_kept_axis(tensor, "N");
    if (axis < 0) return false;
    const int64_t heads = tensor->spec->shape.dims[axis], width = assay_kept_width(tensor);
    const double factor = sqrt((double)width / (double)(m->c->config.base_emb_dim / heads));
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

bool assay_mutant_scale_from_hidden(const assay_mutation *m)
{
    return assay_change_given(m, "wq_b/kernel", times_hidden) || assay_change_given(m, "query/kernel", times_hidden);
}

static bool roll_heads_of(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_roll_axis(tensor, assay_kept_axis(tensor, "N"));
}

bool assay_mutant_roll_heads(const assay_mutation *m)
{
    return assay_change_given(m, "wq_b/kernel", roll_heads_of) ||
           assay_change_given(m, "query/kernel", roll_heads_of) || assay_change_given(m, "query", roll_heads_of);
}

static bool zero_rope_columns(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t width = assay_kept_width(tensor), rope = m->c->config.qk_rope_head_dim;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - rope) tensor->values[i] = 0.0;
    }
    return true;
}

bool assay_mutant_zero_rope_key(const assay_mutation *m)
{
    return assay_change_given(m, "wkv_a/kernel", zero_rope_columns);
}
