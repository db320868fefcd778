#include "oracle/ops/cache_numbers.h"

#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/rms_norm.h"

int64_t assay_cache_norm_width(const assay_cache_numbers_config *c)
{
    return c->columns + (c->norm == ASSAY_CACHE_NORM_ROW ? c->second : 0);
}

/* --- the norm --- */

/* Rows of the norm from the two tensors, or back to them. */
static void move_rows(const assay_cache_numbers *n, const assay_cache_numbers_config *c, int64_t width, double *rows,
                      bool back)
{
    const int64_t second = width - c->columns;
    for (int64_t i = 0; i < c->tokens * c->heads; i++) {
        double *row = rows + i * width, *first = n->numbers + i * c->columns, *rest = n->second + i * second;
        memcpy(back ? first : row, back ? row : first, (size_t)c->columns * sizeof *row);
        if (second > 0)
            memcpy(back ? rest : row + c->columns, back ? row + c->columns : rest, (size_t)second * sizeof *row);
    }
}

static assay_status normalise(assay_context *ctx, const assay_cache_numbers *n, const assay_cache_numbers_config *c)
{
    const int64_t given = assay_cache_norm_width(c), width = c->columns + (c->norm_of_row ? c->second : 0);
    const int64_t rows = c->tokens * c->heads;
    OWNED double *x = NULL;
    OWNED double *rstd = NULL;
    OWNED double *scale = NULL;
    MUST(assay_alloc_f64(ctx, "rows of a norm", rows * width, &x));
    MUST(assay_alloc_f64(ctx, "roots of a norm", rows, &rstd));
    MUST(assay_alloc_f64(ctx, "scale of a norm", width, &scale));
    for (int64_t i = 0; i < width; i++) scale[i] = i < given ? n->scale[i] : 1;
    move_rows(n, c, width, x, false);
    assay_rms_norm_forward(ctx, x, rstd, x, scale, rows, width, c->epsilon);
    move_rows(n, c, width, x, true);
    return ASSAY_OK;
}

/* --- the rotation --- */

static assay_rope_rows rotated_rows(const assay_cache_numbers *n, const assay_cache_numbers_config *c)
{
    const bool first = c->rope_at < c->columns; /* in the first of the two tensors */
    double *x = first ? n->numbers + c->rope_at : n->second + c->rope_at - c->columns;
    const int64_t columns = first ? c->columns : c->second;
    return (assay_rope_rows){.y = x,
                             .y_token_stride = c->heads * columns,
                             .y_head_stride = columns,
                             .x = x,
                             .x_token_stride = c->heads * columns,
                             .x_head_stride = columns,
                             .heads = c->heads};
}

static assay_status rotate(assay_context *ctx, const assay_cache_numbers *n, const assay_cache_numbers_config *c)
{
    const assay_rope_rows rows = rotated_rows(n, c);
    OWNED double *angles = NULL;
    OWNED_BY(assay_rope_table_free) assay_rope_table table = {0};
    MUST(assay_rope_check_positions(ctx, n->positions, c->tokens, &c->rope));
    MUST(assay_alloc_f64(ctx, "rotation angles", c->tokens * c->rope.dim / 2, &angles));
    /* what is rotated is of the norm, whose weights it then matters to come first */
    if (c->norm == ASSAY_CACHE_NORM_ROW || (c->norm != ASSAY_CACHE_NORM_NONE && c->second == 0)) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->tokens * c->heads * c->columns, n->numbers);
        if (c->second > 0) assay_round(ctx, ASSAY_ROUND_STORAGE, c->tokens * c->second, n->second);
    }
    assay_rope_angles(ctx, angles, n->positions, c->tokens, &c->rope);
    MUST(assay_rope_table_of_angles(ctx, &table, angles, c->tokens, &c->rope));
    assay_rope_forward(ctx, &rows, &table, &c->rope);
    return ASSAY_OK;
}

assay_status assay_cache_make_numbers(assay_context *ctx, const assay_cache_numbers *n,
                                      const assay_cache_numbers_config *c)
{
    const bool norms = c->norm != ASSAY_CACHE_NORM_NONE;
    if (norms && !c->norm_last) MUST(normalise(ctx, n, c));
    if (c->rotates) MUST(rotate(ctx, n, c));
    return norms && c->norm_last ? normalise(ctx, n, c) : ASSAY_OK;
}
