/* A grouped product by a training recipe, row by row of the tensors as they lie. Types are their digits and least exponents. */
#include <quadmath.h>
#include <stdio.h>
#include <string.h>

#include "oracle/spec/spec_internal.h"

enum { BLOCK = 128 };

typedef struct small_type {
    int digits, least; /* of the significand; the exponent of the least normal number */
    spec_quad most;
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

static spec_quad nearest(small_type t, spec_quad x)
{
    int exponent = 0;
    if (x == 0) return x;
    frexpq(x, &exponent);
    const int first = exponent - 1 > t.least ? exponent - 1 : t.least, last = first - t.digits + 1;
    return ldexpq(rintq(ldexpq(x, -last)), last);
}

static spec_quad cut_off(small_type t, spec_quad x)
{
    return nearest(t, fabsq(x) > t.most ? copysignq(t.most, x) : x);
}

/* A matrix, the group of each of its rows (-1: of none), and what it becomes. */
typedef struct matrix {
    int64_t rows, columns;
    const spec_quad *x;
    const int64_t *group;
    bool all; /* rows of no group count too, but for scales of blocks */
    spec_quad *codes, *scale, *numbers;
} matrix;

static bool counts(const matrix *m, const assay_recipe_operand *how, int64_t row)
{
    return m->group[row] >= 0 || (m->all && how->scales != ASSAY_SCALES_BLOCKS);
}

static void matrix_free(matrix *m)
{
    free(m->codes);
    free(m->scale);
    free(m->numbers);
}

static spec_quad taken(const assay_recipe_operand *how, spec_quad x)
{
    return how->scales == ASSAY_SCALES_BLOCKS ? nearest(type_of(ASSAY_FLOAT32), x) : x;
}

/* Of what shares element i's scale: of its row or column, a block of BLOCK columns, or of BLOCK rows of a group. */
static spec_quad largest_beside(const matrix *m, const assay_recipe_operand *how, int64_t i, const int64_t *place)
{
    spec_quad largest = 0;
    const int64_t row = i / m->columns, column = i % m->columns;
    const bool blocks = how->scales == ASSAY_SCALES_BLOCKS, down = blocks && strstr(how->format, "128x1") != NULL;
    if (how->scales == ASSAY_SCALES_ROWS || (blocks && !down)) {
        for (int64_t other = 0; other < m->columns; other++) {
            if (blocks && other / BLOCK != column / BLOCK) continue;
            largest = fmaxq(largest, fabsq(taken(how, m->x[row * m->columns + other])));
        }
        return largest;
    }
    for (int64_t other = 0; other < m->rows; other++) {
        const bool same = m->group[other] == m->group[row] && place[other] / BLOCK == place[row] / BLOCK;
        if (!counts(m, how, other) || (blocks && !same)) continue;
        largest = fmaxq(largest, fabsq(taken(how, m->x[other * m->columns + column])));
    }
    return largest;
}

static spec_quad scale_of(const assay_recipe_config *r, const assay_recipe_operand *how,
                          const assay_calibration *calibration, spec_quad largest)
{
    const small_type float32 = type_of(ASSAY_FLOAT32), type = type_of(r->type);
    int exponent = 0;
    if (how->scales == ASSAY_SCALES_BLOCKS) {
        const spec_quad most = strstr(how->format, "e5m2") != NULL ? 57344 : 448;
        const spec_quad s = nearest(float32, fmaxq(largest, nearest(float32, 1e-4Q)) / most);
        const spec_quad part = frexpq(s, &exponent);
        return !r->powers ? s : part == 0.5Q ? s : ldexpq(1, exponent);
    }
    spec_quad amax = nearest(type, largest * nearest(type, calibration->factor));
    if (calibration->fixed > 0) amax = nearest(type, calibration->fixed);
    const spec_quad s = nearest(type, amax / type_of(how->element).most);
    return s < nearest(type, sqrtq(ldexpq(1, type.least))) ? 1 : s;
}

static assay_status quantise(assay_context *ctx, matrix *m, const assay_recipe_config *r,
                             const assay_recipe_operand *how, const assay_calibration *calibration)
{
    assay_status status;
    const int64_t count = m->rows * m->columns;
    const bool blocks = how->scales == ASSAY_SCALES_BLOCKS;
    const small_type type = type_of(blocks ? ASSAY_FLOAT32 : r->type);
    const assay_dtype in_blocks =
        blocks && strstr(how->format, "e5m2") != NULL ? ASSAY_FLOAT8_E5M2 : ASSAY_FLOAT8_E4M3FN;
    const small_type element = type_of(blocks ? in_blocks : how->element);
    void *place = NULL;
    TRY(spec_alloc(ctx, count, &m->codes));
    TRY(spec_alloc(ctx, count, &m->scale));
    TRY(spec_alloc(ctx, count, &m->numbers));
    TRY(assay_alloc(ctx, "rows of groups", m->rows, sizeof(int64_t), &place));
    for (int64_t row = 0; row < m->rows; row++) {
        ((int64_t *)place)[row] = 0;
        for (int64_t before = 0; before < row; before++) ((int64_t *)place)[row] += m->group[before] == m->group[row];
    }
    for (int64_t i = 0; i < count; i++) {
        m->codes[i] = m->numbers[i] = m->x[i];
        m->scale[i] = 1;
        if (how->scales == ASSAY_SCALES_NONE || !counts(m, how, i / m->columns)) continue;
        const spec_quad s = scale_of(r, how, calibration, largest_beside(m, how, i, place));
        const spec_quad y = blocks ? taken(how, m->x[i]) * nearest(type, 1 / s) : m->x[i] / s;
        m->codes[i] = cut_off(element, nearest(type, y));
        m->scale[i] = s;
        m->numbers[i] = m->codes[i] * s;
    }
cleanup:
    free(place);
    return status;
}

assay_status spec_quantise_gradient(assay_context *ctx, const assay_recipe_config *recipe, int64_t rows,
                                    int64_t columns, const spec_quad *dy, spec_quad *numbers)
{
    assay_status status;
    void *group = NULL;
    matrix m = {.rows = rows, .columns = columns, .x = dy};
    TRY(assay_alloc(ctx, "groups of rows", rows, sizeof *m.group, &group));
    memset(group, 0, (size_t)rows * sizeof *m.group);
    m.group = group;
    TRY(quantise(ctx, &m, recipe, &recipe->recipe->dx_dy, &recipe->dy));
    memcpy(numbers, m.numbers, (size_t)(rows * columns) * sizeof *numbers);
cleanup:
    matrix_free(&m);
    free(group);
    return status;
}

typedef struct products {
    const assay_gmm_config *config;
    const assay_recipe_config *recipe;
    const spec_tensor *lhs, *rhs, *dy;
    int64_t rows;
    int64_t *group, *all; /* of rows; of the rows of rhs: 0 */
    matrix x, w, dx_dy, dw_x, dw_dy;
    spec_quad *for_dx, *for_dw;
} products;

static void products_free(products *p)
{
    matrix *const all[] = {&p->x, &p->w, &p->dx_dy, &p->dw_x, &p->dw_dy};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) matrix_free(all[i]);
    free(p->group);
    free(p->all);
    free(p->for_dx);
    free(p->for_dw);
}

static assay_status read(assay_context *ctx, const spec_tensors *in, products *p)
{
    assay_status status;
    const int32_t *index = NULL;
    const assay_gmm_dims d = p->config->dims;
    void *group = NULL, *all = NULL;
    const spec_quad *values;
    p->rows = p->config->layout == ASSAY_GMM_MASKED ? d.groups * d.m : d.m;
    TRY(spec_read(ctx, in, "inputs/lhs", p->rows * d.k, &values));
    TRY(spec_read(ctx, in, "weights/rhs", d.groups * d.k * d.n, &values));
    TRY(spec_read(ctx, in, "cotangents/y", p->rows * d.n, &values));
    TRY(spec_read_gmm_index(ctx, p->config, in, &index));
    p->lhs = spec_tensors_find(in, "inputs/lhs");
    p->rhs = spec_tensors_find(in, "weights/rhs");
    p->dy = spec_tensors_find(in, "cotangents/y");
    TRY(assay_alloc(ctx, "groups of rows", p->rows, sizeof *p->group, &group));
    p->group = group;
    TRY(assay_alloc(ctx, "groups of rows", d.groups * d.k, sizeof *p->all, &all));
    p->all = all;
    for (int64_t row = 0; row < p->rows; row++) p->group[row] = spec_group_of(p->config, index, row);
    for (int64_t row = 0; row < d.groups * d.k; row++) p->all[row] = 0;
cleanup:
    return status;
}

static assay_status quantise_all(assay_context *ctx, products *p)
{
    assay_status status;
    const assay_gmm_dims d = p->config->dims;
    const small_type type = type_of(p->recipe->type);
    const assay_quant_recipe *r = p->recipe->recipe;
    const int64_t count = p->rows * d.n;
    const bool all = p->config->layout == ASSAY_GMM_RAGGED;
    p->x = (matrix){.rows = p->rows, .columns = d.k, .x = p->lhs->values, .group = p->group, .all = all};
    p->w = (matrix){.rows = d.groups * d.k, .columns = d.n, .x = p->rhs->values, .group = p->all};
    TRY(quantise(ctx, &p->x, p->recipe, &r->x, &p->recipe->x));
    TRY(quantise(ctx, &p->w, p->recipe, &r->w, &p->recipe->w));
    TRY(spec_alloc(ctx, count, &p->for_dx));
    TRY(spec_alloc(ctx, count, &p->for_dw));
    for (int64_t i = 0; i < count; i++) {
        const spec_quad dy = p->dy->values[i];
        p->for_dx[i] = r->folds ? nearest(type, dy * p->w.scale[i % d.n]) : dy;
        p->for_dw[i] = r->folds ? nearest(type, dy * p->x.scale[i / d.n * d.k]) : dy;
    }
    p->dx_dy = (matrix){.rows = p->rows, .columns = d.n, .x = p->for_dx, .group = p->group, .all = all};
    p->dw_dy = (matrix){.rows = p->rows, .columns = d.n, .x = p->for_dw, .group = p->group, .all = all};
    p->dw_x = (matrix){.rows = p->rows, .columns = d.k, .x = p->x.codes, .group = p->group, .all = all};
    TRY(quantise(ctx, &p->dx_dy, p->recipe, &r->dx_dy, &p->recipe->dy));
    TRY(quantise(ctx, &p->dw_dy, p->recipe, &r->dw_dy, &p->recipe->dy));
    TRY(quantise(ctx, &p->dw_x, p->recipe, &r->dw_x, &p->recipe->x));
cleanup:
    return status;
}

static assay_status forward(assay_context *ctx, const products *p, const spec_tensors *in, spec_tensors *out)
{
    assay_status status;
    spec_tensors numbers = {0};
    spec_quad *values = NULL;
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", assay_gmm_index_name(p->config->layout));
    const spec_tensor *index = spec_tensors_find(in, path);
    TRY(spec_tensors_add(ctx, &numbers, "inputs/lhs", &p->lhs->shape, &values));
    memcpy(values, p->x.numbers, (size_t)(p->x.rows * p->x.columns) * sizeof *values);
    TRY(spec_tensors_add(ctx, &numbers, "weights/rhs", &p->rhs->shape, &values));
    memcpy(values, p->w.numbers, (size_t)(p->w.rows * p->w.columns) * sizeof *values);
    TRY(spec_tensors_copy_i32(ctx, &numbers, path, &index->shape, index->indices));
    TRY(spec_gmm(ctx, p->config, &numbers, out));
cleanup:
    spec_tensors_free(&numbers);
    return status;
}

static assay_status backward(assay_context *ctx, const products *p, spec_tensors *out)
{
    assay_status status;
    const int64_t k = p->config->dims.k, n = p->config->dims.n;
    spec_quad *dlhs = NULL, *drhs = NULL;
    TRY(spec_tensors_add(ctx, out, "gradients/inputs/lhs", &p->lhs->shape, &dlhs));
    TRY(spec_tensors_add(ctx, out, "gradients/weights/rhs", &p->rhs->shape, &drhs));
    for (int64_t i = 0; i < p->rows * k; i++) dlhs[i] = 0;
    for (int64_t i = 0; i < p->config->dims.groups * k * n; i++) drhs[i] = 0;
    for (int64_t row = 0; row < p->rows; row++) {
        const int64_t first = p->group[row] * k * n;
        for (int64_t at = 0; first >= 0 && at < k * n; at++) {
            const int64_t from = row * k + at / n, to = row * n + at % n;
            dlhs[from] += p->dx_dy.numbers[to] * p->w.codes[first + at];
            drhs[first + at] += p->dw_x.numbers[from] * p->dw_dy.numbers[to];
        }
    }
cleanup:
    return status;
}

assay_status spec_quantised_gmm(assay_context *ctx, const assay_gmm_config *config, const assay_recipe_config *recipe,
                                const spec_tensors *in, spec_tensors *out)
{
    assay_status status;
    products p = {.config = config, .recipe = recipe};
    TRY(read(ctx, in, &p));
    TRY(quantise_all(ctx, &p));
    TRY(forward(ctx, &p, in, out));
    TRY(backward(ctx, &p, out));
cleanup:
    products_free(&p);
    return status;
}
