/* Grouped products: in every layout the rows that are used are packed, group after group, and put back. The k-grouped
 * product is the weight gradient of the other one, and the other way round, so one run serves both. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/base/tensor_set.h"
#include "oracle/ops/gmm_layout.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/propagate/propagate_ops.h"
#include "oracle/propagate/scales.h"

static assay_gmm_config config_of(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    assay_gmm_config config = {
        .alignment = m->mk_alignment_for_contiguous_layout,
        .dims = {.m = c->batch * c->sequence * (m->num_experts_per_tok > 0 ? m->num_experts_per_tok : 1),
                 .k = m->base_emb_dim,
                 .n = m->base_moe_mlp_dim,
                 .groups = m->num_experts}};
    for (int i = 0; i < ASSAY_GMM_LAYOUTS; i++) {
        if (strcmp(m->gmm_layout.text, assay_gmm_layout_names[i]) == 0) config.layout = (assay_gmm_layout)i;
    }
    return config;
}

/* The k-grouped product is one of the recipe's three alone. */
static assay_status check_recipe(assay_context *ctx, const assay_case *c, const assay_gmm_config *gmm)
{
    assay_recipe_config config;
    const assay_status status = assay_recipe_config_of(ctx, c, &config);
    if (status != ASSAY_OK || config.recipe == NULL) return status;
    if (gmm->layout == ASSAY_GMM_K_GROUPED) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "quant_recipe is %s, expected \"\": gmm_layout k_grouped is the weight gradient alone; "
                          "quant_formats says what its operands are",
                          config.recipe->name);
    }
    for (int i = 0; assay_gmm_counts_all_rows(c) && i < c->input_count; i++) {
        if (!c->inputs[i].unused_nan) continue;
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "inputs.%s: unused_nan is not for quant_recipe %s, which finds its scales over all rows, those "
            "of no group too",
            c->inputs[i].path, config.recipe->name);
    }
    return ASSAY_OK;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_status status = ASSAY_OK;
    const assay_gmm_config config = config_of(c);
    const bool aligned = config.layout == ASSAY_GMM_CONTIGUOUS || config.layout == ASSAY_GMM_PSUM;
    TRY(assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim));
    TRY(assay_require_positive(ctx, "base_moe_mlp_dim", c->config.base_moe_mlp_dim));
    TRY(assay_require_positive(ctx, "num_experts", c->config.num_experts));
    if (!aligned && c->config.given[ASSAY_KEY_AT_mk_alignment_for_contiguous_layout] &&
        config.alignment != assay_model_defaults.mk_alignment_for_contiguous_layout) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT,
                            "mk_alignment_for_contiguous_layout is %" PRId64 ", expected %" PRId64
                            ": gmm_layout %s has no alignment",
                            config.alignment, assay_model_defaults.mk_alignment_for_contiguous_layout,
                            assay_gmm_layout_names[config.layout]);
        goto cleanup;
    }
    TRY(check_recipe(ctx, c, &config));
cleanup:
    return status;
}

/* MaxText's rows, by MaxText's recipe: the source calibrates what it is given, whole. */
bool assay_gmm_counts_all_rows(const assay_case *c)
{
    const assay_quant_recipe *r = assay_quant_recipe_by_name(c->config.quant_recipe.text);
    return r != NULL && r->x.scales != ASSAY_SCALES_NONE && config_of(c).layout == ASSAY_GMM_RAGGED;
}

static bool has_recipe(const void *c)
{
    return ((const assay_case *)c)->config.quant_recipe.text[0] != '\0';
}

static void second_form(quad_tape *t, const void *c)
{
    quad_gmm_config config = {.gmm = config_of(c)};
    if (quad_try(t, assay_recipe_config_of(quad_context(t), c, &config.recipe))) quad_gmm(t, &config);
}

/* Rows of no group may hold anything, and in the layouts of serving engines results of them too: nobody computes them.
 * `back`: how far from the end of the list the tensor is. */
static void mark_rows(const assay_gmm_config *config, assay_tensor_list *list, int back)
{
    list->entries[list->count - back].unused_row_axes = config->layout == ASSAY_GMM_MASKED ? 2 : 1;
}

static bool leaves_rows_unwritten(const assay_gmm_config *config)
{
    return config->layout != ASSAY_GMM_RAGGED && config->layout != ASSAY_GMM_K_GROUPED;
}

/* A tensor of rows, with its gradient. */
static assay_status describe_rows(assay_context *ctx, const assay_case *c, const assay_gmm_config *config,
                                  assay_tensor_list *list, const char *path, const char *labels, int64_t width)
{
    const assay_gmm_dims d = config->dims;
    const bool masked = config->layout == ASSAY_GMM_MASKED;
    const assay_dims dims =
        masked ? (assay_dims){labels, {d.groups, d.m, width}} : (assay_dims){labels + 1, {d.m, width}};
    assay_status status = assay_describe_variable(ctx, list, c, path, assay_fill_normal(1.0, 0.0), dims);
    RETURN_IF(status != ASSAY_OK, status);
    mark_rows(config, list, 2);
    assay_mark_operand(list, 2, (assay_operand_axes){0, masked ? 2 : 1, config->layout == ASSAY_GMM_K_GROUPED});
    if (leaves_rows_unwritten(config)) mark_rows(config, list, 1);
    return ASSAY_OK;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    char index[ASSAY_PATH_SIZE];
    const assay_gmm_config config = config_of(c);
    const assay_gmm_dims d = config.dims;
    const bool masked = config.layout == ASSAY_GMM_MASKED, contiguous = config.layout == ASSAY_GMM_CONTIGUOUS;
    const bool sizes = config.layout == ASSAY_GMM_RAGGED || config.layout == ASSAY_GMM_K_GROUPED;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    const assay_fill random_sizes = assay_fill_range(ASSAY_GROUP_SIZES, 0.0, (double)d.m);
    const assay_fill zero = {.distribution = ASSAY_CONSTANT};
    const assay_dims of_groups = {"GkN", {d.groups, d.k, d.n}};
    snprintf(index, sizeof index, "inputs/%s", assay_gmm_index_name(config.layout));
    if (!sizes) TRY(assay_require_all_values(ctx, c, index, assay_gmm_index_count(&config)));
    TRY(describe_rows(ctx, c, &config, list, "inputs/lhs", "GMk", d.k));
    TRY(assay_describe(ctx, list, index, ASSAY_INT32, sizes ? &random_sizes : &zero,
                       (assay_dims){contiguous ? "M" : "G", {assay_gmm_index_count(&config)}}));
    if (config.layout == ASSAY_GMM_K_GROUPED) {
        TRY(describe_rows(ctx, c, &config, list, "inputs/rhs", "GMN", d.n));
        if (assay_case_input_of(c, "inputs/c") != NULL) {
            TRY(assay_describe_variable(ctx, list, c, "inputs/c", one, of_groups));
        }
        TRY(assay_describe_output(ctx, list, c, "y", &one, of_groups));
        goto cleanup;
    }
    TRY(assay_describe_variable(ctx, list, c, "weights/rhs", assay_fill_fan_in(d.k), of_groups));
    assay_mark_operand(list, 2, (assay_operand_axes){1, 1, true});
    TRY(assay_describe_output(ctx, list, c, "y", &one,
                              masked ? (assay_dims){"GMN", {d.groups, d.m, d.n}} : (assay_dims){"MN", {d.m, d.n}}));
    assay_mark_operand(list, 1, (assay_operand_axes){0, masked ? 2 : 1, false});
    mark_rows(&config, list, 1);
    if (leaves_rows_unwritten(&config)) mark_rows(&config, list, 2);
cleanup:
    return status;
}

/* What a run reads and writes, as the product or as its weight gradient sees it: rows [places,k] and [places,n], and what
 * there is of each group [G,k,n]. */
typedef struct gmm_paths {
    const char *lhs, *dy, *rhs, *y, *dlhs, *drhs;
} gmm_paths;

static const gmm_paths product = {"inputs/lhs", "cotangents/y",         "weights/rhs",
                                  "outputs/y",  "gradients/inputs/lhs", "gradients/weights/rhs"};
static const gmm_paths weight_gradient = {"inputs/lhs",           "inputs/rhs",           "cotangents/y",
                                          "gradients/inputs/rhs", "gradients/inputs/lhs", "outputs/y"};

typedef struct gmm_run {
    assay_gmm_config config;
    gmm_paths paths;
    assay_gmm_dims dims; /* of the packed rows */
    int64_t count;       /* of all rows */
    int32_t *index, *group_sizes;
    int64_t *places;
    int64_t of_groups;          /* packed rows that belong to groups; those behind them count for scales alone */
    double *lhs, *dy, *rhs, *c; /* lhs and dy are packed */
    double *y, *dlhs, *drhs;    /* y and dlhs too */
    double *spread;             /* of y or dlhs */
    assay_recipe_operands operands;
} gmm_run;

static void gmm_run_free(gmm_run *r)
{
    double *const all[] = {r->lhs, r->dy, r->rhs, r->c, r->y, r->dlhs, r->drhs, r->spread};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    assay_recipe_operands_free(&r->operands);
    free(r->index);
    free(r->group_sizes);
    free(r->places);
}

/* Rows of no group may hold anything, unless they count for scales; those of a group must hold numbers. */
static assay_status check_row(assay_context *ctx, const gmm_run *r, const char *path, const double *x, int64_t width,
                              int64_t place, bool of_group)
{
    char at[64];
    for (int64_t i = 0; i < width; i++) {
        if (isfinite(x[i])) continue;
        if (r->config.layout == ASSAY_GMM_MASKED) {
            snprintf(at, sizeof at, "%" PRId64 ",%" PRId64, place / r->config.dims.m, place % r->config.dims.m);
        } else {
            snprintf(at, sizeof at, "%" PRId64, place);
        }
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s[%s,%" PRId64 "] is %g, expected a finite number: %s", path, at, i,
                          x[i],
                          of_group ? "the row belongs to a group"
                                   : "quant_recipe fp8_full finds its scales over all rows, those of no group too");
    }
    return ASSAY_OK;
}

/* The rows that are used, in place of all. */
static assay_status read_rows(assay_context *ctx, const gmm_run *r, const assay_source *in, const char *path,
                              int64_t width, double **rows)
{
    assay_status status;
    TRY(assay_read_whole(ctx, in, path, r->count * width, rows));
    for (int64_t row = 0; row < r->dims.m; row++) {
        TRY(check_row(ctx, r, path, *rows + r->places[row] * width, width, r->places[row], row < r->of_groups));
    }
    double *packed = NULL;
    TRY(assay_alloc_f64(ctx, path, r->dims.m * width, &packed));
    assay_gmm_pack(packed, *rows, width, r->places, r->dims.m);
    free(*rows);
    *rows = packed;
cleanup:
    return status;
}

static assay_status find_rows(assay_context *ctx, const assay_source *in, gmm_run *r)
{
    assay_status status;
    char path[ASSAY_PATH_SIZE];
    void *places = NULL;
    snprintf(path, sizeof path, "inputs/%s", assay_gmm_index_name(r->config.layout));
    r->count = assay_gmm_places(&r->config);
    TRY(assay_read_whole_i32(ctx, in, path, assay_gmm_index_count(&r->config), &r->index));
    TRY(assay_alloc_i32(ctx, "group sizes", r->config.dims.groups, &r->group_sizes));
    TRY(assay_alloc(ctx, "rows of groups", r->count, sizeof *r->places, &places));
    r->places = places;
    r->dims = r->config.dims;
    TRY(assay_gmm_find_rows(ctx, &r->config, r->index, r->group_sizes, r->places, &r->dims.m));
    r->of_groups = r->dims.m;
cleanup:
    return status;
}

static assay_status write_rows(assay_context *ctx, const gmm_run *r, const assay_sink *out,
                               const assay_precision *precision, const char *path, int64_t width, const double *packed)
{
    assay_gmm_spread(r->spread, r->count, packed, width, r->places, r->dims.m);
    return precision == NULL ? assay_write_result(ctx, out, path, r->count * width, r->spread)
                             : assay_write_scale(ctx, out, precision, path, r->count * width, r->spread);
}

/* y = c + what may have been stored before. */
static void add_c(const assay_context *ctx, gmm_run *r, int64_t count)
{
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, r->drhs);
    for (int64_t i = 0; i < count; i++) r->drhs[i] += r->c[i];
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, count, r->drhs);
}

/* The scales come in place of the results: of y, `sum` has the product. */
static assay_status write_scales(assay_context *ctx, gmm_run *r, const assay_sink *out,
                                 const assay_precision *precision, const double *sum)
{
    assay_status status;
    const int64_t groups = r->dims.groups * r->dims.k * r->dims.n;
    const assay_recipe_operands *o = &r->operands;
    TRY(assay_propagate_gmm(ctx, precision, &(assay_gmm_variances){.y = r->y},
                            &(assay_gmm_run){r->dy, o->x, o->w, r->group_sizes, r->dims}));
    TRY(assay_propagate_gmm(ctx, precision, &(assay_gmm_variances){.dlhs = r->dlhs},
                            &(assay_gmm_run){o->dx_dy, r->lhs, o->dx_w, r->group_sizes, r->dims}));
    TRY(assay_propagate_gmm(ctx, precision, &(assay_gmm_variances){.drhs = r->drhs},
                            &(assay_gmm_run){o->dw_dy, o->dw_x, r->rhs, r->group_sizes, r->dims}));
    for (int64_t i = 0; r->c != NULL && i < groups; i++) {
        const double product_of = sum[i] - r->c[i];
        r->drhs[i] += assay_propagate_stored(precision, product_of) + assay_propagate_given(precision->given, r->c[i]) +
                      assay_square(precision->accumulate * sum[i]);
    }
    TRY(write_rows(ctx, r, out, precision, r->paths.y, r->dims.n, r->y));
    TRY(write_rows(ctx, r, out, precision, r->paths.dlhs, r->dims.k, r->dlhs));
    TRY(assay_write_scale(ctx, out, precision, r->paths.drhs, groups, r->drhs));
    if (r->c == NULL) goto cleanup;
    for (int64_t i = 0; i < groups; i++) r->drhs[i] = assay_propagate_given(precision->given, r->rhs[i]);
    TRY(assay_write_scale(ctx, out, precision, "gradients/inputs/c", groups, r->drhs));
cleanup:
    return status;
}

static assay_status read_run(assay_context *ctx, const assay_case *c, const assay_source *in, gmm_run *r)
{
    assay_status status;
    r->config = config_of(c);
    r->paths = r->config.layout == ASSAY_GMM_K_GROUPED ? weight_gradient : product;
    TRY(find_rows(ctx, in, r));
    for (; assay_gmm_counts_all_rows(c) && r->dims.m < r->count; r->dims.m++) r->places[r->dims.m] = r->dims.m;
    const int64_t k = r->dims.k, n = r->dims.n, groups = r->dims.groups * k * n;
    TRY(read_rows(ctx, r, in, r->paths.lhs, k, &r->lhs));
    TRY(read_rows(ctx, r, in, r->paths.dy, n, &r->dy));
    TRY(assay_read_whole(ctx, in, r->paths.rhs, groups, &r->rhs));
    TRY(assay_read_whole(ctx, in, "inputs/c", groups, &r->c));
    TRY(assay_alloc_f64(ctx, "gmm", r->dims.m * n, &r->y));
    TRY(assay_alloc_f64(ctx, "gmm", r->dims.m * k, &r->dlhs));
    TRY(assay_alloc_f64(ctx, "gmm", groups, &r->drhs));
    TRY(assay_alloc_f64(ctx, "gmm", r->count * (k > n ? k : n), &r->spread));
cleanup:
    return status;
}

static assay_status write_run(assay_context *ctx, gmm_run *r, const assay_sink *out)
{
    assay_status status;
    const int64_t groups = r->dims.groups * r->dims.k * r->dims.n;
    if (r->c != NULL) add_c(ctx, r, groups);
    TRY(write_rows(ctx, r, out, NULL, r->paths.y, r->dims.n, r->y));
    TRY(write_rows(ctx, r, out, NULL, r->paths.dlhs, r->dims.k, r->dlhs));
    TRY(assay_write_result(ctx, out, r->paths.drhs, groups, r->drhs));
    if (r->c != NULL) TRY(assay_write_result(ctx, out, "gradients/inputs/c", groups, r->rhs));
cleanup:
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    gmm_run r = {0};
    double *sum = NULL;
    assay_recipe_config recipe;
    const assay_recipe_operands *o = &r.operands;
    TRY(read_run(ctx, c, in, &r));
    TRY(assay_recipe_config_of(ctx, c, &recipe));
    const assay_recipe_given given = {.x = r.lhs, .w = r.rhs, .dy = r.dy, .group_sizes = r.group_sizes};
    TRY(assay_recipe_quantise(ctx, &r.operands, &given, &r.dims, &recipe));
    TRY(assay_gmm_forward(ctx, r.y, o->x, o->w, r.group_sizes, &r.dims));
    TRY(assay_gmm_backward(ctx, r.dlhs, NULL, o->dx_dy, r.lhs, o->dx_w, r.group_sizes, &r.dims));
    TRY(assay_gmm_backward(ctx, NULL, r.drhs, o->dw_dy, o->dw_x, r.rhs, r.group_sizes, &r.dims));
    TRY(write_run(ctx, &r, out));
    const int64_t groups = r.dims.groups * r.dims.k * r.dims.n;
    if (r.c != NULL) {
        TRY(assay_alloc_f64(ctx, "gmm", groups, &sum));
        memcpy(sum, r.drhs, (size_t)groups * sizeof *sum);
    }
    for (int i = 0; i < precision_count; i++) TRY(write_scales(ctx, &r, out, &precisions[i], sum));
cleanup:
    free(sum);
    gmm_run_free(&r);
    return status;
}

static assay_status used_rows(assay_context *ctx, const assay_case *c, const assay_source *in, bool **used)
{
    assay_status status;
    void *memory = NULL;
    gmm_run r = {.config = config_of(c)};
    TRY(find_rows(ctx, in, &r));
    TRY(assay_alloc(ctx, "rows that are used", r.count, sizeof **used, &memory));
    *used = memory;
    memset(*used, 0, (size_t)r.count * sizeof **used);
    for (int64_t row = 0; row < r.dims.m; row++) (*used)[r.places[row]] = true;
cleanup:
    gmm_run_free(&r);
    return status;
}

/* The same groups in another layout: its case, its index, and where its rows lie. */
typedef struct relaid {
    assay_case c;
    assay_gmm_config config;
    gmm_paths paths;
    int32_t *index;
    int64_t *places;
} relaid;

/* Groups begin at multiples of a number that is none of the case's sizes. */
static assay_status relay(assay_context *ctx, const assay_case *c, const gmm_run *r, relaid *o)
{
    enum { ALIGNMENT = 6 };
    assay_status status;
    void *places = NULL;
    const assay_gmm_layout layout = (assay_gmm_layout)((r->config.layout + 1) % ASSAY_GMM_LAYOUTS);
    const bool masked = layout == ASSAY_GMM_MASKED, contiguous = layout == ASSAY_GMM_CONTIGUOUS;
    const int64_t alignment = contiguous || layout == ASSAY_GMM_PSUM ? ALIGNMENT : 1;
    int64_t most = 1, end = 0, packed = 0;
    for (int64_t g = 0; g < r->dims.groups; g++) most = r->group_sizes[g] > most ? r->group_sizes[g] : most;
    o->c = *c;
    o->c.input_count = 0;
    snprintf(o->c.config.gmm_layout.text, sizeof o->c.config.gmm_layout.text, "%s", assay_gmm_layout_names[layout]);
    o->c.config.mk_alignment_for_contiguous_layout = ALIGNMENT;
    o->c.batch = o->c.config.num_experts_per_tok = 1;
    o->c.sequence = masked ? most : r->dims.m + r->dims.groups * alignment;
    o->config = config_of(&o->c);
    o->paths = layout == ASSAY_GMM_K_GROUPED ? weight_gradient : product;
    TRY(assay_alloc_i32(ctx, "layout", assay_gmm_index_count(&o->config), &o->index));
    TRY(assay_alloc(ctx, "layout", r->dims.m, sizeof *o->places, &places));
    o->places = places;
    for (int64_t i = 0; contiguous && i < o->config.dims.m; i++) o->index[i] = -1;
    for (int64_t g = 0; g < r->dims.groups; g++) {
        const int64_t first = masked ? g * most : (end + alignment - 1) / alignment * alignment;
        end = first + r->group_sizes[g];
        for (int64_t place = first; place < end; place++) {
            o->places[packed++] = place;
            if (contiguous) o->index[place] = (int32_t)g;
        }
        if (!contiguous) o->index[g] = layout == ASSAY_GMM_PSUM ? (int32_t)end : r->group_sizes[g];
    }
cleanup:
    return status;
}

/* Rows that belong to nothing hold NaN in the other layout. */
static void give_rows(const gmm_run *r, const relaid *o, const assay_tensor_set *set, const char *path,
                      const double *packed, int64_t width)
{
    assay_tensor *to = assay_tensor_set_find(set, path);
    for (int64_t i = 0; i < to->count; i++) to->values[i] = NAN;
    for (int64_t row = 0; row < r->dims.m; row++) {
        memcpy(to->values + o->places[row] * width, packed + row * width, (size_t)width * sizeof *packed);
    }
    to->written = to->count;
}

static assay_status run_relaid(assay_context *ctx, const gmm_run *r, const relaid *o, assay_tensor_set *set)
{
    assay_status status;
    assay_tensor_list list = {0};
    char index[ASSAY_PATH_SIZE];
    snprintf(index, sizeof index, "inputs/%s", assay_gmm_index_name(o->config.layout));
    TRY(describe(ctx, &o->c, &list));
    for (int i = 0; i < list.count; i++) TRY(assay_tensor_set_add(ctx, set, &list.entries[i].spec, NULL));
    assay_tensor *rhs = assay_tensor_set_find(set, o->paths.rhs), *groups = assay_tensor_set_find(set, index);
    give_rows(r, o, set, o->paths.lhs, r->lhs, r->dims.k);
    give_rows(r, o, set, o->paths.dy, r->dy, r->dims.n);
    memcpy(rhs->values, r->rhs, (size_t)rhs->count * sizeof *r->rhs);
    memcpy(groups->indices, o->index, (size_t)groups->count * sizeof *o->index);
    rhs->written = rhs->count;
    groups->written = groups->count;
    const assay_source in = assay_tensor_set_source(set);
    const assay_sink out = assay_tensor_set_sink(set);
    TRY(run(ctx, &o->c, &in, &out, NULL, 0));
cleanup:
    assay_tensor_list_free(&list);
    return status;
}

assay_status assay_gmm_run_in_other_layout(assay_context *ctx, const assay_case *c, const assay_source *in,
                                           const assay_sink *out)
{
    assay_status status;
    gmm_run r = {0};
    relaid o = {0};
    assay_tensor_set set = {0};
    TRY(read_run(ctx, c, in, &r));
    TRY(relay(ctx, c, &r, &o));
    TRY(run_relaid(ctx, &r, &o, &set));
    const assay_tensor *drhs = assay_tensor_set_find(&set, o.paths.drhs);
    memcpy(r.drhs, drhs->values, (size_t)drhs->count * sizeof *r.drhs);
    assay_gmm_pack(r.y, assay_tensor_set_find(&set, o.paths.y)->values, r.dims.n, o.places, r.dims.m);
    assay_gmm_pack(r.dlhs, assay_tensor_set_find(&set, o.paths.dlhs)->values, r.dims.k, o.places, r.dims.m);
    TRY(write_run(ctx, &r, out));
cleanup:
    free(o.index);
    free(o.places);
    assay_tensor_set_free(&set);
    gmm_run_free(&r);
    return status;
}

static double flops(const assay_case *c, bool backward)
{
    const assay_gmm_config config = config_of(c);
    return (backward ? 6.0 : 2.0) * (double)assay_gmm_places(&config) * (double)config.dims.k * (double)config.dims.n;
}

static int64_t memory(const assay_case *c)
{
    const assay_gmm_config config = config_of(c);
    const assay_gmm_dims d = config.dims;
    const int64_t rows = assay_gmm_places(&config);
    /* codes, scales and numbers of each operand of the three products */
    const int64_t of_recipe = has_recipe(c) ? 3 * (rows * (d.k + 3 * d.n) + d.groups * d.k * d.n) : 0;
    /* results and operands, rows packed and not; the error scale of one group's product holds its operands again */
    return 8 * of_recipe + 8 * (4 * rows * (d.k + d.n) + 5 * d.groups * d.k * d.n + d.k * d.n + 2 * rows + d.groups);
}

const assay_operation assay_op_gmm = {.name = "gmm",
                                      .parts = ASSAY_PART_GROUPS,
                                      .summary = "grouped matrix product: the rows of each group times its own matrix",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .used_rows = used_rows,
                                      .one_product = true,
                                      .quantised = true,
                                      .second_form = {.form = second_form},
                                      .flops = flops,
                                      .memory = memory};
