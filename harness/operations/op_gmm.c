/* Grouped products: in every layout the rows that are used are packed, group after group, and put back. The k-grouped
 * product is the weight gradient of the other one, and the other way round, so one run serves both. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_work.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/gmm_layout.h"
#include "oracle/ops/quant_recipe.h"

static assay_gmm_config layout_of(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return (assay_gmm_config){
        .layout = (assay_gmm_layout)assay_model_choice(m, ASSAY_KEY_AT_gmm_layout),
        .alignment = m->mk_alignment_for_contiguous_layout,
        .dims = {.m = c->batch * c->sequence * (m->num_experts_per_tok > 0 ? m->num_experts_per_tok : 1),
                 .k = m->base_emb_dim,
                 .n = m->base_moe_mlp_dim,
                 .groups = m->num_experts}};
}

/* MaxText's rows, by MaxText's recipe: the source calibrates what it is given, whole. */
static bool counts_all_rows(const assay_gmm_config *gmm, const assay_quant_recipe *recipe)
{
    return recipe != NULL && recipe->x.scales != ASSAY_SCALES_NONE && gmm->layout == ASSAY_GMM_RAGGED;
}

/* The k-grouped product is one of the recipe's three alone. */
static assay_status check_recipe(assay_context *ctx, const assay_case *c, const quad_gmm_config *config)
{
    const assay_quant_recipe *recipe = config->recipe.recipe;
    if (recipe != NULL && config->gmm.layout == ASSAY_GMM_K_GROUPED) {
        return assay_refuse_key(ctx, &c->config, ASSAY_KEY_AT_quant_recipe,
                                "\"\": gmm_layout k_grouped is the weight gradient alone; "
                                "quant_formats says what its operands are");
    }
    for (int i = 0; counts_all_rows(&config->gmm, recipe) && i < c->input_count; i++) {
        if (!c->inputs[i].unused_nan) continue;
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "inputs.%s: unused_nan is not for quant_recipe %s, which finds its scales over all rows, those "
            "of no group too",
            c->inputs[i].path, recipe->name);
    }
    return ASSAY_OK;
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_gmm_config *config = to;
    config->gmm = layout_of(c);
    const assay_gmm_layout layout = config->gmm.layout;
    const bool aligned = layout == ASSAY_GMM_CONTIGUOUS || layout == ASSAY_GMM_PSUM;
    MUST(assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim));
    MUST(assay_require_positive(ctx, "base_moe_mlp_dim", c->config.base_moe_mlp_dim));
    MUST(assay_require_positive(ctx, "num_experts", c->config.num_experts));
    if (!aligned && c->config.is_set[ASSAY_KEY_AT_mk_alignment_for_contiguous_layout] &&
        config->gmm.alignment != assay_model_defaults.mk_alignment_for_contiguous_layout) {
        return assay_refuse_key(ctx, &c->config, ASSAY_KEY_AT_mk_alignment_for_contiguous_layout,
                                "%" PRId64 ": gmm_layout %s has no alignment",
                                assay_model_defaults.mk_alignment_for_contiguous_layout, c->config.gmm_layout.text);
    }
    MUST(assay_quant_recipe_config_of(ctx, c, &config->recipe));
    return check_recipe(ctx, c, config);
}

/* P: rows that there are, of all groups. */
static int64_t axis_size(const void *of, char axis)
{
    const assay_gmm_config *config = &((const quad_gmm_config *)of)->gmm;
    if (axis == 'P') return assay_gmm_places(config);
    if (axis == 'G') return config->dims.groups;
    if (axis == 'M') return config->dims.m;
    if (axis == 'k') return config->dims.k;
    return config->dims.n;
}

/* Rows of no group may hold anything, and in the layouts of serving engines results of them too: nobody computes them.
 * `back`: how far from the end of the list the tensor is. */
static void mark_rows(assay_describer *d, const assay_gmm_config *config, int back)
{
    assay_described(d, back)->unused_row_axes = config->layout == ASSAY_GMM_MASKED ? 2 : 1;
}

static bool leaves_rows_unwritten(const assay_gmm_config *config)
{
    return config->layout != ASSAY_GMM_RAGGED && config->layout != ASSAY_GMM_K_GROUPED;
}

/* A tensor of rows, with its gradient; axes: of masked ones. */
static void describe_rows(assay_describer *d, const assay_gmm_config *config, const char *path, const char *axes)
{
    const bool masked = config->layout == ASSAY_GMM_MASKED;
    assay_describe_variable(d, path, assay_fill_normal(1.0, 0.0), masked ? axes : axes + 1);
    mark_rows(d, config, 2);
    assay_described(d, 2)->operand = (assay_operand_axes){0, masked ? 2 : 1, config->layout == ASSAY_GMM_K_GROUPED};
    if (leaves_rows_unwritten(config)) mark_rows(d, config, 1);
}

static void index_path(const assay_gmm_config *config, char path[ASSAY_PATH_SIZE])
{
    snprintf(path, ASSAY_PATH_SIZE, "inputs/%s", assay_gmm_index_name(config->layout));
}

static void describe(assay_describer *d, const void *of)
{
    char index[ASSAY_PATH_SIZE];
    const assay_gmm_config *config = &((const quad_gmm_config *)of)->gmm;
    const bool masked = config->layout == ASSAY_GMM_MASKED, contiguous = config->layout == ASSAY_GMM_CONTIGUOUS;
    const bool sizes = config->layout == ASSAY_GMM_RAGGED || config->layout == ASSAY_GMM_K_GROUPED;
    const assay_fill one = assay_fill_normal(1.0, 0.0), zero = {.distribution = ASSAY_CONSTANT};
    const assay_fill random_sizes = assay_fill_range(ASSAY_GROUP_SIZES, 0.0, (double)config->dims.m);
    index_path(config, index);
    if (!sizes) assay_require_all_values(d, index, assay_gmm_index_count(config));
    describe_rows(d, config, "inputs/lhs", "GMk");
    assay_describe(d, index, ASSAY_INT32, sizes ? &random_sizes : &zero, contiguous ? "M" : "G");
    if (config->layout == ASSAY_GMM_K_GROUPED) {
        describe_rows(d, config, "inputs/rhs", "GMN");
        if (assay_case_input_of(d->c, "inputs/c") != NULL) assay_describe_variable(d, "inputs/c", one, "GkN");
        assay_describe_output(d, "y", &one, "GkN");
        return;
    }
    assay_describe_variable(d, "weights/rhs", assay_fill_fan_in(config->dims.k), "GkN");
    assay_described(d, 2)->operand = (assay_operand_axes){1, 1, true};
    assay_describe_output(d, "y", &one, masked ? "GMN" : "MN");
    assay_described(d, 1)->operand = (assay_operand_axes){0, masked ? 2 : 1, false};
    mark_rows(d, config, 1);
    if (leaves_rows_unwritten(config)) mark_rows(d, config, 2);
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

/* Packed rows: lhs, dy, y and dlhs; the rest as the tensors have it. */
typedef struct gmm_run {
    const assay_gmm_config *gmm;
    const gmm_paths *paths;
    int64_t count;       /* places */
    int64_t of_groups;   /* rows of groups; dims.m has those that count for scales too */
    int64_t groups;      /* numbers of a tensor of groups */
    assay_gmm_dims dims; /* of the packed rows */
    int32_t *group_sizes;
    int64_t *places;
    double *lhs, *dy, *y, *dlhs;
    const double *rhs, *c;
    assay_quant_recipe_operands operands;
} gmm_run;

static void gmm_run_free(gmm_run *r)
{
    free(r->lhs);
    free(r->dy);
    free(r->y);
    free(r->dlhs);
    assay_quant_recipe_operands_free(&r->operands);
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
        if (r->gmm->layout == ASSAY_GMM_MASKED) {
            snprintf(at, sizeof at, "%" PRId64 ",%" PRId64, place / r->gmm->dims.m, place % r->gmm->dims.m);
        } else {
            snprintf(at, sizeof at, "%" PRId64, place);
        }
        return assay_refuse(ctx, "%s[%s,%" PRId64 "] is %g, expected a finite number: %s", path, at, i, x[i],
                            of_group ? "the row belongs to a group"
                                     : "quant_recipe fp8_full finds its scales over all rows, those of no group too");
    }
    return ASSAY_OK;
}

/* The rows that are used, of all. */
static assay_status pack(assay_context *ctx, const gmm_run *r, const assay_work *w, const char *path, int64_t width,
                         double **packed)
{
    const double *rows = assay_f64(w, path);
    if (rows == NULL) return ASSAY_OK;
    for (int64_t row = 0; row < r->dims.m; row++)
        MUST(check_row(ctx, r, path, rows + r->places[row] * width, width, r->places[row], row < r->of_groups));
    MUST(assay_alloc_f64(ctx, path, r->dims.m * width, packed));
    assay_gmm_pack(*packed, rows, width, r->places, r->dims.m);
    return ASSAY_OK;
}

static assay_status find_rows(assay_context *ctx, const assay_gmm_config *gmm, const int32_t *index, gmm_run *r)
{
    r->gmm = gmm;
    r->count = assay_gmm_places(gmm);
    MUST(assay_alloc_i32(ctx, "group sizes", gmm->dims.groups, &r->group_sizes));
    MUST(assay_alloc(ctx, "rows of groups", r->count, sizeof *r->places, &r->places));
    r->dims = gmm->dims;
    MUST(assay_gmm_find_rows(ctx, gmm, index, r->group_sizes, r->places, &r->dims.m));
    r->of_groups = r->dims.m;
    return ASSAY_OK;
}

static assay_status start(assay_context *ctx, const assay_work *w, gmm_run *r)
{
    char index[ASSAY_PATH_SIZE];
    const quad_gmm_config *config = w->config;
    index_path(&config->gmm, index);
    MUST(find_rows(ctx, &config->gmm, assay_i32(w, index), r));
    const bool all = counts_all_rows(r->gmm, config->recipe.recipe);
    for (; all && r->dims.m < r->count; r->dims.m++) r->places[r->dims.m] = r->dims.m;
    const int64_t k = r->dims.k, n = r->dims.n;
    r->paths = r->gmm->layout == ASSAY_GMM_K_GROUPED ? &weight_gradient : &product;
    r->groups = r->dims.groups * k * n;
    MUST(pack(ctx, r, w, r->paths->lhs, k, &r->lhs));
    MUST(pack(ctx, r, w, r->paths->dy, n, &r->dy));
    r->rhs = assay_f64(w, r->paths->rhs);
    r->c = assay_f64(w, "inputs/c");
    MUST(assay_alloc_f64(ctx, "gmm", r->dims.m * n, &r->y));
    MUST(assay_alloc_f64(ctx, "gmm", r->dims.m * k, &r->dlhs));
    const assay_quant_recipe_inputs in = {.x = r->lhs, .w = r->rhs, .dy = r->dy, .group_sizes = r->group_sizes};
    return assay_quant_recipe_quantise(ctx, &r->operands, &in, &r->dims, &config->recipe);
}

/* y and dlhs to their places. */
static void unpack(const gmm_run *r, double *y, double *dlhs)
{
    assay_gmm_scatter(y, r->count, r->y, r->dims.n, r->places, r->dims.m);
    assay_gmm_scatter(dlhs, r->count, r->dlhs, r->dims.k, r->places, r->dims.m);
}

/* y = c + what may have been stored before. */
static void add_c(const assay_context *ctx, const gmm_run *r, const assay_work *w, double *y)
{
    double *dc = assay_f64(w, "gradients/inputs/c");
    if (r->c == NULL) return;
    memcpy(dc, r->rhs, (size_t)r->groups * sizeof *dc);
    assay_round(ctx, ASSAY_ROUND_STORAGE, r->groups, y);
    for (int64_t i = 0; i < r->groups; i++) y[i] += r->c[i];
    assay_round(ctx, ASSAY_ROUND_ACCUMULATE, r->groups, y);
}

static assay_status compute(assay_context *ctx, const assay_work *w)
{
    OWNED_BY(gmm_run_free) gmm_run r = {0};
    const assay_quant_recipe_operands *o = &r.operands;
    MUST(start(ctx, w, &r));
    double *drhs = assay_f64(w, r.paths->drhs);
    MUST(assay_gmm_forward(ctx, r.y, o->x, o->w, r.group_sizes, &r.dims));
    MUST(assay_gmm_backward(ctx, r.dlhs, NULL, o->dx_dy, r.lhs, o->dx_w, r.group_sizes, &r.dims));
    MUST(assay_gmm_backward(ctx, NULL, drhs, o->dw_dy, o->dw_x, r.rhs, r.group_sizes, &r.dims));
    unpack(&r, assay_f64(w, r.paths->y), assay_f64(w, r.paths->dlhs));
    add_c(ctx, &r, w, drhs);
    return ASSAY_OK;
}

static assay_status used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                              const assay_source *in, bool **used)
{
    char path[ASSAY_PATH_SIZE];
    const assay_gmm_config gmm = layout_of(c);
    OWNED int32_t *index = NULL;
    OWNED_BY(gmm_run_free) gmm_run r = {0};
    (void)of;
    index_path(&gmm, path);
    MUST(assay_read_all_i32(ctx, in, path, assay_gmm_index_count(&gmm), &index));
    MUST(find_rows(ctx, &gmm, index, &r));
    MUST(assay_alloc(ctx, "rows that are used", r.count, sizeof **used, used));
    memset(*used, 0, (size_t)r.count * sizeof **used);
    for (int64_t row = 0; row < r.dims.m; row++) (*used)[r.places[row]] = true;
    return ASSAY_OK;
}

const assay_operation assay_op_gmm = {.name = "gmm",
                                      .components = ASSAY_USES_GROUPS,
                                      .summary = "grouped matrix product: the rows of each group times its own matrix",
                                      .config_of = config_of,
                                      .axis_size = axis_size,
                                      .describe = describe,
                                      .compute = compute,
                                      .used_rows = used_rows,
                                      .quantised = true,
                                      .second_form = {.form = quad_gmm},
                                      .count = {"PkN", 2, 6}};
