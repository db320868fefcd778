#include "oracle/ops/cache_numbers.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/ops/rms_norm.h"

const char *const assay_cache_norms[] = {"none", "latent", "row", NULL};

#define NORMS (c->norm != ASSAY_CACHE_NORM_NONE)
#define CHANGE_TABLE(X)                                                                                                \
    X(NORM_MISSING, "cache norm missing", NORMS)                                                                       \
    X(ONE_MORE, "cache norm by one more", NORMS) /* weights are taken for what is added to 1 */                        \
    X(NORM_OF_OTHERS, "cache norm of others", NORMS && c->second > 0)                                                  \
    X(NORM_LAST, "cache norm last", NORMS && c->rotates && rotated_by_norm(c))                                         \
    X(ROPE_MISSING, "cache rope missing", c->rotates)                                                                  \
    X(ROPE_TWICE, "cache rope twice", c->rotates)                                                                      \
    X(ROPE_BY_SLOT, "cache rope by slot", c->rotates)                                                                  \
    X(ROPE_OF_REST, "cache rope of the rest", c->rotates && c->columns >= c->rope.dim + (c->second > 0 ? 0 : 2))       \
    X(CODES_FIRST, "cache codes first", c->rotates && rules->format != NULL)

typedef enum numbers_change {
    NOTHING,
#define X(name, word, applies) name,
    CHANGE_TABLE(X)
#undef X
} numbers_change;

/* Whether what is rotated is of the norm, whose weights it then matters to come first. */
static bool rotated_by_norm(const assay_cache_numbers_config *c)
{
    return c->second == 0 || c->norm == ASSAY_CACHE_NORM_ROW;
}

static numbers_change change_of(const assay_context *ctx, const assay_cache_numbers_config *c,
                                const assay_quantize_config *rules)
{
#define X(name, word, applies)                                                                                         \
    if ((applies) && assay_step_is_changed(ctx, word, NULL)) return name;
    CHANGE_TABLE(X)
#undef X
    return NOTHING;
}

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

static assay_status normalise(assay_context *ctx, const assay_cache_numbers *n, const assay_cache_numbers_config *c,
                              numbers_change change)
{
    const bool row = (c->norm == ASSAY_CACHE_NORM_ROW) != (change == NORM_OF_OTHERS);
    const int64_t width = c->columns + (row ? c->second : 0), given = assay_cache_norm_width(c);
    const int64_t rows = c->tokens * c->heads;
    OWNED double *x = NULL;
    OWNED double *rstd = NULL;
    OWNED double *scale = NULL;
    MUST(assay_alloc_f64(ctx, "rows of a norm", rows * width, &x));
    MUST(assay_alloc_f64(ctx, "roots of a norm", rows, &rstd));
    MUST(assay_alloc_f64(ctx, "scale of a norm", width, &scale));
    for (int64_t i = 0; i < width; i++) scale[i] = (i < given ? n->scale[i] : 1) + (change == ONE_MORE ? 1 : 0);
    move_rows(n, c, width, x, false);
    assay_rms_norm_forward(ctx, x, rstd, x, scale, rows, width, c->epsilon);
    move_rows(n, c, width, x, true);
    return ASSAY_OK;
}

/* --- the rotation --- */

static assay_rope_rows rotated_rows(const assay_cache_numbers *n, const assay_cache_numbers_config *c,
                                    numbers_change change)
{
    const bool keys = c->second == 0, rest = change == ROPE_OF_REST;
    double *x = keys || rest ? n->numbers : n->second;
    if (keys && rest) x += c->columns - c->rope.dim;
    const int64_t columns = keys || rest ? c->columns : c->second;
    return (assay_rope_rows){.y = x,
                             .y_token_stride = c->heads * columns,
                             .y_head_stride = columns,
                             .x = x,
                             .x_token_stride = c->heads * columns,
                             .x_head_stride = columns,
                             .heads = c->heads};
}

/* Each row as the numbers of its codes. */
static void quantise_rows(const assay_rope_rows *r, int64_t tokens, int64_t dim, const assay_quantize_config *rules)
{
    for (int64_t i = 0; i < tokens * r->heads; i++) {
        double *row = r->y + i / r->heads * r->y_token_stride + i % r->heads * r->y_head_stride;
        double amax = 0;
        for (int64_t k = 0; k < dim; k++) amax = fmax(amax, fabs(row[k]));
        const double scale = assay_quantize_scale(amax, rules);
        assay_quantize_by(row, row, dim, scale, rules);
        for (int64_t k = 0; k < dim; k++) row[k] *= scale * (rules->format->tensor_scale ? rules->tensor_scale : 1);
    }
}

static assay_status rotate(assay_context *ctx, const assay_cache_numbers *n, const assay_cache_numbers_config *c,
                           const assay_quantize_config *rules, numbers_change change)
{
    const assay_rope_rows rows = rotated_rows(n, c, change);
    OWNED double *angles = NULL;
    OWNED int32_t *places = NULL;
    OWNED_BY(assay_rope_table_free) assay_rope_table table = {0};
    MUST(assay_rope_check_positions(ctx, n->positions, c->tokens, &c->rope));
    MUST(assay_alloc_f64(ctx, "rotation angles", c->tokens * c->rope.dim / 2, &angles));
    MUST(assay_alloc_i32(ctx, "positions", c->tokens, &places));
    for (int64_t i = 0; i < c->tokens; i++) {
        const int32_t slot = n->slots[i] < 0 ? 0 : n->slots[i];
        places[i] = change == ROPE_BY_SLOT ? slot : n->positions[i];
    }
    if (NORMS && rotated_by_norm(c)) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->tokens * c->heads * c->columns, n->numbers);
        if (c->second > 0) assay_round(ctx, ASSAY_ROUND_STORAGE, c->tokens * c->second, n->second);
    }
    if (change == CODES_FIRST) quantise_rows(&rows, c->tokens, c->rope.dim, rules);
    assay_rope_angles(ctx, angles, places, c->tokens, &c->rope);
    MUST(assay_rope_table_of_angles(ctx, &table, angles, c->tokens, &c->rope));
    assay_rope_forward(ctx, &rows, &table, &c->rope);
    if (change == ROPE_TWICE) assay_rope_forward(ctx, &rows, &table, &c->rope);
    return ASSAY_OK;
}

assay_status assay_cache_make_numbers(assay_context *ctx, const assay_cache_numbers *n,
                                      const assay_cache_numbers_config *c, const assay_quantize_config *rules)
{
    const numbers_change change = change_of(ctx, c, rules);
    const bool norms = NORMS && change != NORM_MISSING;
    if (norms && change != NORM_LAST) MUST(normalise(ctx, n, c, change));
    if (c->rotates && change != ROPE_MISSING) MUST(rotate(ctx, n, c, rules, change));
    if (norms && change == NORM_LAST) MUST(normalise(ctx, n, c, change));
    return ASSAY_OK;
}
