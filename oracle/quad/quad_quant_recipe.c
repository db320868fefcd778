/* A training recipe's products, row by row of the tensors as they lie. Types are their digits and least exponents. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_quant_recipe.h"

enum { BLOCK = 128 };

typedef struct small_type {
    int digits, least; /* of the significand; the exponent of the least normal number */
    quad most;
} small_type;

static small_type type_of(assay_dtype type)
{
    switch (type) {
    case ASSAY_FLOAT8_E4M3FN:
        return (small_type){4, -6, 448};
    case ASSAY_FLOAT8_E5M2:
        return (small_type){3, -14, 57344};
    case ASSAY_BFLOAT16:
        return (small_type){8, -126, 0};
    case ASSAY_FLOAT16:
        return (small_type){11, -14, 0};
    default:
        return (small_type){24, -126, 0};
    }
}

static quad nearest(small_type t, quad x)
{
    int exponent = 0;
    if (x == 0) return x;
    frexpq(x, &exponent);
    const int first = exponent - 1 > t.least ? exponent - 1 : t.least, last = first - t.digits + 1;
    return ldexpq(rintq(ldexpq(x, -last)), last);
}

static quad cut_off(small_type t, quad x)
{
    return nearest(t, fabsq(x) > t.most ? copysignq(t.most, x) : x);
}

static bool counts(const quad_recipe_matrix *m, const assay_quant_recipe_operand *how, int64_t row)
{
    return m->group[row] >= 0 || (m->counts_all && how->scales != ASSAY_SCALES_BLOCKS);
}

static bool same_set(const quad_recipe_matrix *m, int64_t row, int64_t other)
{
    return m->set == NULL || m->set[row] == m->set[other];
}

static void matrix_free(quad_recipe_matrix *m)
{
    free(m->codes);
    free(m->scale);
    free(m->numbers);
}

static quad taken(const assay_quant_recipe_config *r, const assay_quant_recipe_operand *how, quad x)
{
    return nearest(type_of(how->scales == ASSAY_SCALES_BLOCKS ? ASSAY_FLOAT32 : r->type), x);
}

/* Of what shares element i's scale: of its row or column, a block of BLOCK columns, or of BLOCK rows of a group. */
static quad largest_beside(const quad_recipe_matrix *m, const assay_quant_recipe_config *r,
                           const assay_quant_recipe_operand *how, int64_t i, const int64_t *place)
{
    quad largest = 0;
    const int64_t row = i / m->columns, column = i % m->columns;
    const bool blocks = how->scales == ASSAY_SCALES_BLOCKS, down = blocks && strstr(how->format, "128x1") != NULL;
    if (how->scales == ASSAY_SCALES_ROWS || (blocks && !down)) {
        for (int64_t other = 0; other < m->columns; other++) {
            if (blocks && other / BLOCK != column / BLOCK) continue;
            largest = fmaxq(largest, fabsq(taken(r, how, m->x[row * m->columns + other])));
        }
        return largest;
    }
    for (int64_t other = 0; other < m->rows; other++) {
        const bool same = m->group[other] == m->group[row] && place[other] / BLOCK == place[row] / BLOCK;
        if (!counts(m, how, other) || !same_set(m, row, other) || (blocks && !same)) continue;
        largest = fmaxq(largest, fabsq(taken(r, how, m->x[other * m->columns + column])));
    }
    return largest;
}

static quad scale_of(const assay_quant_recipe_config *r, const assay_quant_recipe_operand *how,
                     const assay_calibration *calibration, quad largest)
{
    const small_type float32 = type_of(ASSAY_FLOAT32), type = type_of(r->type);
    int exponent = 0;
    if (how->scales == ASSAY_SCALES_BLOCKS) {
        const quad most = strstr(how->format, "e5m2") != NULL ? 57344 : 448;
        const quad s = nearest(float32, fmaxq(largest, nearest(float32, 1e-4Q)) / most);
        const quad part = frexpq(s, &exponent);
        return !r->powers ? s : part == 0.5Q ? s : ldexpq(1, exponent);
    }
    quad amax = nearest(type, largest * nearest(type, calibration->factor));
    if (calibration->fixed > 0) amax = nearest(type, calibration->fixed);
    const quad s = nearest(type, amax / type_of(how->element).most);
    return s < nearest(type, sqrtq(ldexpq(1, type.least))) ? 1 : s;
}

static assay_status quantise(assay_context *ctx, quad_recipe_matrix *m, const assay_quant_recipe_config *r,
                             const assay_quant_recipe_operand *how, const assay_calibration *calibration)
{
    const int64_t count = m->rows * m->columns;
    const bool blocks = how->scales == ASSAY_SCALES_BLOCKS;
    const small_type type = type_of(blocks ? ASSAY_FLOAT32 : r->type);
    const assay_dtype in_blocks =
        blocks && strstr(how->format, "e5m2") != NULL ? ASSAY_FLOAT8_E5M2 : ASSAY_FLOAT8_E4M3FN;
    const small_type element = type_of(blocks ? in_blocks : how->element);
    OWNED void *place = NULL;
    MUST(quad_alloc(ctx, count, &m->codes));
    MUST(quad_alloc(ctx, count, &m->scale));
    MUST(quad_alloc(ctx, count, &m->numbers));
    MUST(assay_alloc(ctx, "rows of groups", m->rows, sizeof(int64_t), &place));
    for (int64_t row = 0; row < m->rows; row++) {
        ((int64_t *)place)[row] = 0;
        for (int64_t before = 0; before < row; before++)
            ((int64_t *)place)[row] += m->group[before] == m->group[row] && same_set(m, row, before);
    }
    for (int64_t i = 0; i < count; i++) {
        m->codes[i] = m->numbers[i] = m->x[i];
        m->scale[i] = 1;
        if (how->scales == ASSAY_SCALES_NONE || !counts(m, how, i / m->columns)) continue;
        const quad s = scale_of(r, how, calibration, largest_beside(m, r, how, i, place));
        const quad y = blocks ? taken(r, how, m->x[i]) * nearest(type, 1 / s) : taken(r, how, m->x[i]) / s;
        m->codes[i] = cut_off(element, nearest(type, y));
        m->scale[i] = s;
        m->numbers[i] = m->codes[i] * s;
    }
    return ASSAY_OK;
}

assay_status quad_quantise_gradient(assay_context *ctx, const assay_quant_recipe_config *recipe, int64_t rows,
                                    int64_t columns, const quad *dy, quad *numbers)
{
    OWNED void *group = NULL;
    OWNED_BY(matrix_free) quad_recipe_matrix m = {.rows = rows, .columns = columns, .x = dy};
    MUST(assay_alloc(ctx, "groups of rows", rows, sizeof *m.group, &group));
    m.group = memset(group, 0, (size_t)rows * sizeof *m.group);
    MUST(quantise(ctx, &m, recipe, &recipe->recipe->dx_dy, &recipe->dy));
    memcpy(numbers, m.numbers, (size_t)(rows * columns) * sizeof *numbers);
    return ASSAY_OK;
}

/* x, dy or what is made of them: a matrix of the layer's rows. */
static quad_recipe_matrix of_rows(const quad_recipe_layer *l, int64_t columns, const quad *x)
{
    return (quad_recipe_matrix){
        .rows = l->rows, .columns = columns, .x = x, .group = l->group, .set = l->set, .counts_all = l->counts_all};
}

assay_status quad_recipe_quantise(assay_context *ctx, quad_recipe_layer *l)
{
    const int64_t rows = l->groups * l->k, shards = l->shards > 0 ? l->shards : 1;
    MUST(assay_alloc(ctx, "groups of rows", rows, sizeof *l->all, &l->all));
    MUST(assay_alloc(ctx, "shards of rows", rows, sizeof *l->of_shard, &l->of_shard));
    for (int64_t row = 0; row < rows; row++) {
        l->all[row] = 0;
        l->of_shard[row] = row / (rows / shards);
    }
    l->of_x = of_rows(l, l->k, l->x);
    l->of_w = (quad_recipe_matrix){.rows = rows, .columns = l->n, .x = l->w, .group = l->all, .set = l->of_shard};
    MUST(quantise(ctx, &l->of_x, l->recipe, &l->recipe->recipe->x, &l->recipe->x));
    return quantise(ctx, &l->of_w, l->recipe, &l->recipe->recipe->w, &l->recipe->w);
}

assay_status quad_recipe_quantise_back(assay_context *ctx, quad_recipe_layer *l)
{
    const small_type type = type_of(l->recipe->type);
    const assay_quant_recipe *r = l->recipe->recipe;
    const int64_t count = l->rows * l->n;
    MUST(quad_alloc(ctx, count, &l->for_dx));
    MUST(quad_alloc(ctx, count, &l->for_dw));
    for (int64_t i = 0; i < count; i++) {
        const quad dy = r->folds ? nearest(type, l->dy[i]) : l->dy[i];
        const int64_t group = l->group[i / l->n] < 0 ? 0 : l->group[i / l->n];
        l->for_dx[i] = r->folds ? nearest(type, dy * l->of_w.scale[group * l->k * l->n + i % l->n]) : dy;
        l->for_dw[i] = r->folds ? nearest(type, dy * l->of_x.scale[i / l->n * l->k]) : dy;
    }
    l->dx_dy = of_rows(l, l->n, l->for_dx);
    l->dw_dy = of_rows(l, l->n, l->for_dw);
    l->dw_x = of_rows(l, l->k, l->of_x.codes);
    MUST(quantise(ctx, &l->dx_dy, l->recipe, &r->dx_dy, &l->recipe->dy));
    MUST(quantise(ctx, &l->dw_dy, l->recipe, &r->dw_dy, &l->recipe->dy));
    return quantise(ctx, &l->dw_x, l->recipe, &r->dw_x, &l->recipe->x);
}

void quad_recipe_free(quad_recipe_layer *l)
{
    quad_recipe_matrix *const all[] = {&l->of_x, &l->of_w, &l->dx_dy, &l->dw_x, &l->dw_dy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) matrix_free(all[i]);
    free(l->all);
    free(l->of_shard);
    free(l->for_dx);
    free(l->for_dw);
}
